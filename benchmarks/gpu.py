"""What this machine does: matrix products, updates by shape, row length and precision, sampling, whole training steps.

    python benchmarks/gpu.py [--out FILE] [--model FOLDER] [--shapes 0.5b 1.5b 7b] [--rows 512 1024 4096 real]
                             [--precision mixed] [--lora 0 16] [--compile no yes]
                             [--checkpointing none selective full] [--json]
    python benchmarks/gpu.py --predict h200

Each job runs in a process of its own, so that one without enough memory ends no other. With ``--out`` its figures are
appended to a file of JSON lines as soon as they are there, and jobs whose figures the file has are not run again unless
code, libraries, device or model changed: after an interruption the same command goes on.

An update is a GRPO step of a Qwen2.5 shape with random weights: forward and backward, clipping, AdamW. In rows of equal
length the second half is trained; rows called ``real`` are log-normal (median 400 tokens, 0.5 in the logarithm, 64 to
4,096), with a quarter trained. ``mixed`` is float32 weights with bfloat16 products. The share is of the speed of square
matrix products of this device, measured first, in bfloat16 (in float32 for ``--precision float32``). Operations of a
step: 6 x weights of the layers per token, 6 x those of the head per trained token, and 6 x layers x width x length per
token of a row for causal attention; with LoRA 4 x frozen and 6 x adapter weights. ``old`` is the share as once counted,
with 6 x every parameter for every token. GiB is the peak of an update.

With ``--model``, its sampling and the workloads of `workload.py` are measured too, by vLLM on a GPU; the steps per hour
in Search-R1's setting (2,560 episodes) are predicted from 256. ``--predict`` runs nothing: `counts.py` has its
formulas.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from counts import CARDS, SHAPES, Card, predictions
from gpu_jobs import KINDS, device_name

from searchgym.cli.output import emit, table
from searchgym.corpora.files import sha256_file
from searchgym.rollout.folders import model_folder
from searchgym.rollout.samplers.vllm import vllm_version

HERE: Final = Path(__file__).resolve().parent
AXES: Final = ("shapes", "rows", "precision", "lora", "compile", "checkpointing")
MEMORY: Final = "out of memory"
"""Error of a job that is recorded, since it would come again."""
Row = dict[str, Any]


def main() -> None:
    """Runs the jobs that have no figures yet, and prints the tables."""
    args = arguments()
    if args.job:
        job = json.loads(args.job)
        print(json.dumps(KINDS[job.pop("kind")](**job)))
        return
    if args.predict:
        show_prediction(CARDS[args.predict], args)
        return
    identity = identity_of(args.model)
    known = recorded(args.out)
    rows, failed = [], False
    for job in jobs(args):
        key = hashlib.sha256(json.dumps([job, identity], sort_keys=True).encode()).hexdigest()[:16]
        row = known.get(key)
        if row is None:
            print(f"{label(job)} ...", file=sys.stderr)
            row = {"key": key, "job": job, "identity": identity, **figures(job)}
            if args.out and row.get("error", MEMORY) == MEMORY:
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        failed = failed or row.get("error", MEMORY) != MEMORY
        rows.append(row)
    show(rows, identity, args.json)
    if failed:
        sys.exit(1)


def arguments() -> argparse.Namespace:
    """Returns the parsed arguments."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="default: a choice of jobs for all shapes")
    parser.add_argument("--rows", nargs="+", default=["512", "1024", "4096", "real"], help="tokens of rows, or real")
    parser.add_argument("--precision", nargs="+", default=["mixed"], choices=("mixed", "bfloat16", "float32"))
    parser.add_argument("--lora", nargs="+", type=int, default=[0], help="ranks of adapters; 0: all weights")
    parser.add_argument("--compile", nargs="+", default=["no"], choices=("no", "yes"), help="compiled layers")
    parser.add_argument("--checkpointing", nargs="+", default=["none"], choices=("none", "selective", "full"))
    parser.add_argument("--step-tokens", type=int, default=32_768)
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--runs", type=int, default=3, help="number of counted steps, after two that warm up")
    parser.add_argument("--product", type=int, default=8192 if gpu else 2048, help="rows of the matrix products")
    parser.add_argument("--model", help="folder or name: measure its sampling and the workloads")
    parser.add_argument("--sampler", choices=("vllm", "transformers"), default="vllm" if gpu else "transformers")
    parser.add_argument("--requests", type=int, default=256 if gpu else 16, help="requests sampled at once")
    parser.add_argument("--episodes", type=int, default=256 if gpu else 16, help="episodes of a step of a workload")
    parser.add_argument("--workloads", nargs="+", default=["w", "w-short", "search-r1"])
    parser.add_argument("--out", type=Path, help="file of JSON lines for the figures, which are not measured again")
    parser.add_argument("--predict", choices=CARDS, help="predict speeds and memory for a card, and measure nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- jobs -------------------------------------------------------------------------------------------------------------


def jobs(args: argparse.Namespace) -> Iterator[Row]:
    """Yields the jobs: keyword arguments of the functions in `gpu_jobs.KINDS`, and the kind."""
    yield {"kind": "products", "size": args.product}
    sizes = {"step_tokens": args.step_tokens, "micro_batch_tokens": args.micro_batch_tokens, "runs": args.runs}
    for shape, rows, precision, lora, compile, checkpointing in updates(args):
        way = {"compile": compile == "yes", "checkpointing": checkpointing}
        yield {"kind": "update", "shape": shape, "rows": rows, "precision": precision, "lora": lora, **way, **sizes}
    if args.model is None:
        return
    dtype = "bfloat16"
    engine = {"model": args.model, "sampler": args.sampler}
    lengths = {"requests": args.requests, "prompt_tokens": 256, "max_tokens": 128, "runs": args.runs}
    yield {"kind": "sampling", **engine, "dtype": dtype, **lengths}
    for workload in args.workloads:
        steps = {"episodes": args.episodes, "steps": args.runs, "overrides": []}
        yield {"kind": "step", "workload": workload, **engine, **steps}


def updates(args: argparse.Namespace) -> list[tuple[str, str, str, int, str, str]]:
    """Returns the updates to measure as values of `AXES`: the product of what is named, or a choice for a GPU."""
    if args.shapes:
        return list(itertools.product(*(getattr(args, axis) for axis in AXES)))
    chosen = [
        (shape, rows, "mixed", 0, compile, "none")
        for shape in ("0.5b", "1.5b")
        for rows in ("512", "1024", "4096", "real")
        for compile in ("no", "yes")
    ]
    chosen += [("1.5b", "4096", precision, 0, "no", "none") for precision in ("bfloat16", "float32")]
    chosen += [(shape, "4096", "mixed", 0, "no", "selective") for shape in ("0.5b", "1.5b")]
    chosen += [("1.5b", "4096", "mixed", 0, "no", "full"), ("1.5b", "4096", "mixed", 16, "no", "none")]
    return [
        *chosen,
        *(("7b", rows, "bfloat16", 16, compile, "full") for rows in ("1024", "4096") for compile in ("no", "yes")),
    ]


def figures(job: Mapping[str, Any]) -> Row:
    """Runs a job in a process of its own; returns its figures, or an ``error``."""
    command = [sys.executable, str(HERE / "gpu.py"), "--job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        row: Row = json.loads(done.stdout.splitlines()[-1])
        return row
    if "OutOfMemoryError" in done.stderr or "can't allocate memory" in done.stderr or done.returncode == -9:
        return {"error": MEMORY}
    print(done.stderr, file=sys.stderr)
    return {"error": (done.stderr.splitlines() or [f"ended with {done.returncode}"])[-1]}


def recorded(path: Path | None) -> dict[str, Row]:
    """Returns the figures in a file by their keys; a last line that was cut is left out."""
    rows: dict[str, Row] = {}
    if path is None or not path.exists():
        return rows
    text = path.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, encoding="utf-8")
    for line in text.splitlines():
        row = json.loads(line)
        rows[row["key"]] = row
    return rows


# -- what was measured ------------------------------------------------------------------------------------------------


def identity_of(model: str | None) -> Row:
    """Returns what the figures belong to: code, libraries, device, model."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True)
    names = ("gpu", "gpu_jobs", "counts", "workload", "scripted")
    return {
        "commit": git.stdout.strip() or None,
        "package sha256": digest(sorted((HERE.parent / "searchgym").rglob("*.py"))),
        "scripts sha256": digest([HERE / f"{name}.py" for name in names]),
        "device": device_name(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "vllm": vllm_version(),
        "model": model,
        "model sha256": digest(sorted(model_folder(model).glob("*.safetensors"))) if model else None,
    }


def digest(paths: Sequence[Path]) -> str:
    """Returns the SHA-256 of the SHA-256 of files, or that of a single file."""
    sums = [sha256_file(path) for path in paths]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


# -- tables -----------------------------------------------------------------------------------------------------------


def label(job: Mapping[str, Any]) -> str:
    """Returns a job in words."""
    if job["kind"] == "products":
        return f"products of {job['size']} x {job['size']}"
    if job["kind"] == "sampling":
        return f"{job['sampler']}, {job['requests']} x ({job['prompt_tokens']} + {job['max_tokens']})"
    if job["kind"] == "step":
        return f"{job['workload']}, {job['sampler']}, {job['episodes']}"
    words = [job["shape"], job["rows"], "" if job["precision"] == "mixed" else job["precision"]]
    words += [f"lora {job['lora']}" if job["lora"] else "", "compiled" if job["compile"] else ""]
    return " ".join(filter(None, [*words, "" if job["checkpointing"] == "none" else job["checkpointing"]]))


def with_shares(row: Row, speeds: Mapping[str, float]) -> Row:
    """Returns the figures of an update with its shares of the speed of products."""
    if "operations" not in row or not speeds:
        return row
    job = row["job"]
    peak = speeds["float32" if job["precision"] == "float32" else "bfloat16"]
    per_second = row["tokens/s"] / row["tokens"] / peak
    return row | {"share": row["operations"] * per_second, "old share": row["old operations"] * per_second}


def show(rows: Sequence[Row], identity: Mapping[str, Any], as_json: bool) -> None:
    """Prints a table for each kind of job, or one JSON object."""
    by_kind = {kind: [row for row in rows if row["job"]["kind"] == kind] for kind in KINDS}
    speeds = {name: value for row in by_kind["products"] for name, value in row.items() if name.startswith(("b", "f"))}
    by_kind["update"] = [with_shares(row, speeds) for row in by_kind["update"]]
    if as_json:
        emit({"results": [row for kind in by_kind.values() for row in kind], "identity": dict(identity)}, True)
        return
    table(("", ""), [(name, str(value)) for name, value in identity.items()], "measured")
    columns: dict[str, list[tuple[str, float, int]]] = {
        "products": [("bfloat16", 1e-12, 2), ("float32", 1e-12, 2)],
        "update": [("tokens/s", 1, 0), ("share", 1, 3), ("old share", 1, 3), ("GiB", 1, 1)],
        "sampling": [("tokens/s", 1, 0), ("read/s", 1, 0), ("GiB", 1, 1)],
        "step": [("draw s", 1, 1), ("learn s", 1, 1), ("publish s", 1, 1), ("step s", 1, 1), ("idle", 1, 2),
                 ("generated/s", 1, 0), ("learnt/s", 1, 0), ("steps/hour of 2560", 1, 1)],
    }  # fmt: skip
    titles = {"products": "TFLOP/s", "update": "updates", "sampling": "sampling", "step": "training steps"}
    for kind, measured in by_kind.items():
        if measured:
            names = [name.removesuffix(" of 2560") for name, _, _ in columns[kind]]
            cells = [[label(row["job"]), *cells_of(row, columns[kind])] for row in measured]
            table(["job", *names], cells, titles[kind])


def cells_of(row: Row, columns: Sequence[tuple[str, float, int]]) -> list[str]:
    """Returns the cells of a row, by (name, factor, decimals) of the columns; an error stands in the first."""
    if "error" in row:
        return [row["error"], *("" for _ in columns[1:])]
    return ["" if row.get(name) is None else f"{row[name] * factor:,.{digits}f}" for name, factor, digits in columns]


def show_prediction(card: Card, args: argparse.Namespace) -> None:
    """Prints what counts of operations and bytes predict for a card."""
    length = int(args.rows[-1]) if len(args.rows) == 1 else 4096
    rows = predictions(card, length, args.micro_batch_tokens)
    if args.json:
        emit({"results": rows, "card": vars(card)}, True)
        return
    speed = f"{card.product / 1e12:.0f} TFLOP/s in bfloat16 products, {card.bandwidth / 1e12:.1f} TB/s"
    heads = [name for name in rows[0] if not name.startswith("GiB") and name != "way"]
    title = f"{card.name} ({speed}), rows of {length:,}, half trained"
    table(heads, [[text(row[name]) for name in heads] for row in rows], title)
    parts = ["shape", "way", *(name for name in rows[0] if name.startswith("GiB"))]
    title = f"memory of an update, micro-batches of {args.micro_batch_tokens:,} tokens"
    table(parts, [[text(row[name]) for name in parts] for row in rows], title)


def text(value: Any) -> str:
    """Returns a cell: whole numbers from 100 up, else one decimal."""
    return str(value) if isinstance(value, str) else f"{value:,.{0 if value >= 100 else 1}f}"


if __name__ == "__main__":
    main()
