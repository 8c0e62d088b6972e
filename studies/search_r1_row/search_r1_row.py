"""One published row of Search-R1 (arXiv 2503.09516): its released 7B model on HotpotQA, by one command on one GPU.

    python studies/search_r1_row/search_r1_row.py --plan                     # what would be run, and what it needs
    python studies/search_r1_row/search_r1_row.py --out runs/search-r1       # on a GPU of 80 GB, 300 GB of disk
    python studies/search_r1_row/search_r1_row.py --small --out runs/small   # the same steps with what ships, on a CPU

The row is exact match of the model that the authors trained from Qwen2.5-7B by PPO, on HotpotQA's 7,405 development
questions, with E5 over Wikipedia of 2018, three passages a search, four searches and an answer. A step whose result is
there is not repeated. Deviations: the prompt is this project's wording of the same instructions, and the scorer is
HotpotQA's. Give the value of the paper's table by --published: the script says whether it lies in the 95 % interval.

The full size has not been run yet; the small one is run by the tests.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.folders import home

ROOT: Final = Path(__file__).parents[2]
MODEL: Final = "PeterJinGo/SearchR1-nq_hotpotqa_train-qwen2.5-7b-em-ppo"
RULES: Final = ("--max-turns", "5", "--top-k", "3", "--max-observation-words", "350")
"""Search-R1's budgets: four searches and the answer, three passages, about 500 tokens of them."""


@dataclass(frozen=True)
class Step:
    """One command, and the file that it leaves when it is done."""

    name: str
    command: tuple[str, ...]
    makes: Path
    needs: str


def steps(out: Path, small: bool, limit: int | None) -> list[Step]:
    """Returns the steps of the row.

    Args:
        out: Folder of the index and the run.
        small: Whether what ships takes the place of corpus, encoder, model and questions.
        limit: Number of questions. Default: all.
    """
    index, run = out / "index", out / "run"
    corpus = ROOT / "searchgym" / "demo" / "corpus.jsonl" if small else home() / "data" / "wiki-18.jsonl.gz"
    build = ("index", "build", str(corpus), "--retriever", "bm25" if small else "e5-flat", "--out", str(index))
    play: tuple[str, ...] = (
        "eval",
        "Demo" if small else "HotpotQA",
        "--agent",
        "search-r1",
        "--corpus",
        str(index),
        *RULES,
    )
    play += ("--model", "tiny") if small else ("--model", MODEL, "--sampler", "vllm", "--dtype", "bfloat16")
    play += () if small else ("--max-tokens", "500", "--questions", "hf:RUC-NLPIR/FlashRAG_datasets:hotpotqa/dev")
    play += ("--limit", str(limit)) if limit else ()
    get = ("corpus", "get", "wiki-18")
    made = [
        Step("index", build, index / "manifest.json", "a GPU for hours" if not small else "seconds"),
        Step("evaluation", (*play, "--out", str(run), "--json"), run / "scores.json", "a GPU of 80 GB, hours"),
    ]
    return made if small else [Step("corpus", get, corpus, "the network, 5 GB to download"), *made]


def main() -> None:
    """Prints the plan, or runs the steps that are left and compares the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/search-r1"))
    parser.add_argument("--plan", action="store_true", help="print the steps and run none")
    parser.add_argument("--small", action="store_true", help="run the same steps with what ships")
    parser.add_argument("--limit", type=int, help="number of questions; default: all")
    parser.add_argument("--published", type=float, help="exact match of the paper's table, between 0 and 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    plan = steps(args.out, args.small, args.limit)
    rows = [
        {"step": s.name, "done": s.makes.exists(), "needs": s.needs, "command": shlex.join(("searchgym", *s.command))}
        for s in plan
    ]
    if args.plan:
        emit_rows(rows, args.json, "results", "one row of Search-R1")
        return
    for step in plan:
        print(f"{step.name} ...", file=sys.stderr)
        if not step.makes.exists():
            if subprocess.run([sys.executable, "-m", "searchgym", *step.command], stdout=subprocess.DEVNULL).returncode:
                raise SystemExit(f"the step {step.name!r} failed, as told above; run the command again to go on there")
            if not step.makes.exists():
                raise SystemExit(f"the step {step.name!r} ended well and left no {step.makes}")
    emit(result(json.loads(plan[-1].makes.read_text(encoding="utf-8")), args.published), args.json)


def result(scores: dict[str, Any], published: float | None) -> dict[str, Any]:
    """Returns exact match with its interval, and whether the published value lies in it."""
    low, high = scores["em_ci95"]
    within = None if published is None else low <= published <= high
    return {"n": scores["n"], "em": scores["em"], "interval": [low, high], "published": published, "within": within}


if __name__ == "__main__":
    main()
