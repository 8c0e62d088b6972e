"""Seconds and memory of converting a model's GGUF file, compared with transformers' own reader of such files.

    python benchmarks/conversion.py qwen2.5-coder-0.5b [--file FILE] [--runs 3] [--json]

Without ``--file`` the weights are downloaded and joined first, which is not counted. Each conversion is a process of
its own, in turn; both write float32 weights, tokenizer and configuration. Memory is the process's peak. Imports count.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit_rows
from searchgym.options.cards import find_card, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.rollout.pretrained.convert import convert
from searchgym.rollout.pretrained.packages import downloaded, joined

WAYS = ("streaming", "transformers")


def main() -> None:
    """Converts in both ways and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of a model in packages")
    parser.add_argument("--file", type=Path, help="the GGUF file, if it is here")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(once(args.way, args.file)))
        return
    if args.file is not None:
        rows = compared(args.file, args.runs)
    else:
        card = load_card(PretrainedCard, find_card("pretrained", args.model))
        scratch = tempfile.TemporaryDirectory()
        with scratch as folder, downloaded(card) as parts, joined(card, parts, Path(folder)) as file:
            rows = compared(file, args.runs)
    emit_rows(rows, args.json, "results", args.model)


def compared(file: Path, runs: int) -> list[dict[str, float | str]]:
    """Returns a row of medians for each way."""
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way in WAYS:
            command = [sys.executable, __file__, "-", "--way", way, "--file", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[way].append(json.loads(done.stdout.splitlines()[-1]))
    medians = {way: statistics.median(one["s"] for one in of_way) for way, of_way in results.items()}
    return [
        {
            "way": way,
            "s": medians[way],
            "of transformers": medians[way] / medians["transformers"],
            "GiB": max(one["GiB"] for one in results[way]),
            "GiB written": results[way][0]["GiB written"],
        }
        for way in WAYS
    ]


def once(way: str, file: Path) -> dict[str, float]:
    """Converts a file to a temporary folder; returns seconds and GiB."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if way == "streaming":
            convert(file, folder)
        else:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            place = {"gguf_file": file.name, "local_files_only": True}
            AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)
            model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype="float32", **place)
            model.hf_quantizer = None  # it would refuse to save what it has de-quantised
            model.save_pretrained(folder)
        written = sum(path.stat().st_size for path in folder.iterdir()) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"s": time.perf_counter() - began, "GiB": peak, "GiB written": written}


if __name__ == "__main__":
    main()
