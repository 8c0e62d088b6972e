"""GRPO beside rejection sampling on the tiny model: gain in greedy EM on held-out questions, at equal generated tokens.

python benchmarks/tiny_training.py [--seeds 5] [--questions 500] [--out runs/tiny-training] [--json] [KEY=VALUE ...]

For each seed GRPO trains by ``tiny-grpo``; then rejection sampling trains by ``tiny-rejection`` until it has generated
as many tokens. Further recipe values are for both. A folder of an earlier run is gone on with: finished trainings stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.agents.base import load_agent
from searchgym.cli.demo import ENV, em_by_question, evaluate_model
from searchgym.cli.output import emit_rows
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.eval.intervals import bootstrap_ci
from searchgym.train.demonstrations import AGENT
from searchgym.train.recipe import load_recipe
from searchgym.train.run import train

MANY_STEPS = 100_000
"""Steps of rejection sampling at most: its tokens end it."""


def main() -> None:
    """Trains with every seed and prints a row per training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="recipe values")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=500, help="held-out questions")
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-training"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    task = load_task(find_env(ENV))
    task = dataclasses.replace(task, questions=task.questions[: args.questions])
    before = scores_of(task, load_recipe("tiny-grpo", args.overrides).model, args.out / "before")
    rows = [{"method": "before", "seed": "-"} | means(before)]
    for seed in range(args.seeds):
        tokens = 0
        for method in ("grpo", "rejection"):
            print(f"{method}, seed {seed} ...", file=sys.stderr, flush=True)
            overrides = [*args.overrides, f"seed={seed}"]
            if method == "rejection":
                overrides += [f"steps={MANY_STEPS}", f"max_generated_tokens={tokens}"]
            row = trained(task, method, overrides, args.out / f"{method}-{seed}", before)
            tokens = row["tokens"]
            rows.append({"method": method, "seed": seed} | row)
    emit_rows(rows, args.json, "results", f"greedy EM on {len(task.questions)} held-out questions of {ENV}")
    if not args.json:
        for method in ("grpo", "rejection"):
            gains = np.array([row["gain"] for row in rows if row["method"] == method], np.float64)
            print(f"{method}: mean gain {gains.mean():.3f}, standard deviation {gains.std(ddof=1):.3f}")


def trained(task: Task, method: str, overrides: list[str], out: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Trains and evaluates, unless that was done before; returns the row."""
    record = out / "row.json"
    if record.is_file():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    started = time.perf_counter()
    recipe = load_recipe(f"tiny-{method}", overrides)
    result = train(recipe, out / "train", resume=(out / "train").exists())
    seconds = time.perf_counter() - started
    after = scores_of(task, str(result.checkpoint), out / "after")
    low, high = bootstrap_ci([after["em"][i] - before["em"][i] for i in sorted(before["em"])])
    own, reference = means(after), means(before)
    row = own | {
        "gain": own["em"] - reference["em"],
        "gain_low": low,
        "gain_high": high,
        "recall_gain": own["title_recall"] - reference["title_recall"],
        "steps": result.progress.step,
        "tokens": result.progress.generated_tokens,
        "seconds": round(seconds),
    }
    record.write_text(json.dumps(row), encoding="utf-8")
    return row


def scores_of(task: Task, model: str, out: Path) -> dict[str, Any]:
    """Returns a model's scores, and its EM by question id in the place of the mean."""
    scores = evaluate_model(task, load_agent(AGENT), model, out)
    return scores | {"em": em_by_question(out)}


def means(scores: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row."""
    return {
        "em": float(np.mean(list(scores["em"].values()))),
        "title_recall": scores["title_recall"][-1],
        "searches": scores["searches"],
    }


if __name__ == "__main__":
    main()
