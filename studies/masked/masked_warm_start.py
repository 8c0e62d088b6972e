"""Comparison of two warm starts of the tiny model at equal tokens read: with and without masked spans first.

    python studies/masked/masked_warm_start.py [--seeds 1 2 3 4 5] [--reader N] [--tokens N] [--share 0.25] [--steps 12]
                                           [--questions 500] [--set KEY=VALUE ...] [--out runs/masked]
                                           [--float32] [--recorded FILE] [--json]

One reader is trained for all, on exercises alone (``--reader`` tokens). From it each arm reads as many tokens
(``--tokens``) of demonstrations in the order of the tiny model's curriculum: ``plain`` as they are, ``masked`` with a
share of them replaced, at their beginning, by masked spans whose source is kept, of one to four masks. Then both train
by ``tiny-grpo`` for ``--steps`` steps. Greedy EM on the held-out questions of World-v0 is measured after the warm start
and after the training; one arm beats the other if the 95 % interval of the paired differences over seeds and questions
excludes 0. Rows that were recorded without the EM of each question have one over seeds alone, for these questions only.

With the folder of an earlier run, what is finished is not repeated, and a training that was stopped goes on. Nor is
what stands in ``--recorded``, a file that keeps the rows of arms (beside this script).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.agents import load_agent
from searchgym.cli.demo.run import ENV, evaluate_model
from searchgym.cli.demo.summary import em_by_question
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import Task, find_env, load_task
from searchgym.train import load_recipe, train

sys.path += [str(Path(__file__).parents[1] / "methods"), str(Path(__file__).parents[2] / "models" / "make")]
from methods import BY_QUESTION, ems_of, excludes_0, tested_differences
from recorded import Recorded
from tiny import STATE, Run
from tiny_model import STAGES, TinySettings, masked_first

ARMS: Final = ("masked", "plain")
EXERCISES: Final = tuple(stage for stage in STAGES if stage.lesson == "exercise")
DEMONSTRATIONS: Final = tuple(stage for stage in STAGES if stage.lesson != "exercise")
EVALUATIONS: Final = 4
"""Number of times that a training is saved."""


def main() -> None:
    """Trains what is missing and prints a row per arm and seed, and one per contrast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="from 1: the reader has seed 0")
    parser.add_argument("--reader", type=int, default=5_200_000, help="tokens of exercises that the reader reads")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="tokens of demonstrations that each arm reads")
    parser.add_argument("--share", type=float, default=0.25, help="share of these that are masked spans in their arm")
    parser.add_argument("--steps", type=int, default=12, help="steps of tiny-grpo afterwards; 0: none")
    parser.add_argument("--questions", type=int, default=500, help="number of held-out questions")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="values of tiny-grpo to change")
    parser.add_argument("--float32", action="store_true", help="compute in float32, for CPUs that emulate bfloat16")
    parser.add_argument("--out", type=Path, default=Path("runs/masked"))
    parser.add_argument("--recorded", type=Path, help="JSONL file with the rows of finished arms, extended")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if min(args.seeds) < 1 or not 0 < args.share < 1 or min(args.reader, args.tokens, args.questions) < 1:
        parser.error("seeds are from 1 on, --share is between 0 and 1, numbers of tokens and questions are positive")
    task = load_task(find_env(ENV)).subset(args.questions)
    plan = {name: getattr(args, name) for name in ("reader", "tokens", "share", "steps", "questions")}
    plan |= ({"set": args.set} if args.set else {}) | ({"float32": True} if args.float32 else {})
    args.out.mkdir(parents=True, exist_ok=True)
    known = args.out / "plan.json"
    if known.is_file() and json.loads(known.read_text(encoding="utf-8")) != plan:
        parser.error(f"{args.out} holds a comparison with other numbers ({known}): choose another --out")
    known.write_text(json.dumps(plan), encoding="utf-8")
    recorded = Recorded(args.recorded, plan)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        rows = [recorded_arm(arm, seed, args, task, recorded) for seed in args.seeds for arm in ARMS]
    contrasts = [contrast(rows, when) for when in ("warm", *(("trained",) if args.steps else ()))]
    if args.json:
        emit({"arms": rows, "contrasts": contrasts}, True)
        return
    listed = [{key: value for key, value in row.items() if not key.endswith(BY_QUESTION)} for row in rows]
    emit_rows(listed, False, "arms", f"greedy EM on {args.questions} held-out questions of {ENV}")
    emit_rows(contrasts, False, "contrasts", f"masked - plain over {len(args.seeds)} paired seeds")


def warm(settings: TinySettings, out: Path) -> dict[str, Any]:
    """Trains a model on the stages of a curriculum, or goes on with it; returns its summary."""
    summary = out / "summary.json"
    if not summary.is_file() or (out / STATE).is_file():
        print(f"{out} ...", file=sys.stderr, flush=True)
        Run.start(settings).train(None, out, resume=summary.is_file())
    return dict(json.loads(summary.read_text(encoding="utf-8")))


def recorded_arm(arm: str, seed: int, args: argparse.Namespace, task: Task, recorded: Recorded) -> dict[str, Any]:
    """Returns an arm's row: the recorded one, or that of its training, which is recorded."""
    name = f"{arm}-{seed}"
    if name not in recorded.rows:
        row = arm_of(arm, seed, args, task)
        recorded.add(name, row)
        return row
    return recorded.rows[name]


def arm_of(arm: str, seed: int, args: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Trains and evaluates an arm, unless an earlier run did; returns its row."""
    folder = args.out / f"{arm}-{seed}"
    record = folder / "row.json"
    if record.is_file():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    shared = TinySettings(
        seed=0, tokens=args.reader, stages=EXERCISES, evaluations=EVALUATIONS, autocast=not args.float32
    )
    warm(shared, args.out / "reader")
    whole = sum(stage.share for stage in DEMONSTRATIONS)
    stages = masked_first(DEMONSTRATIONS, args.share * whole) if arm == "masked" else DEMONSTRATIONS
    began = time.perf_counter()
    own = {"seed": seed, "tokens": args.tokens, "stages": stages, "start": str(args.out / "reader")}
    summary = warm(dataclasses.replace(shared, **own), folder / "warm")
    row = {"arm": arm, "seed": seed, "tokens": summary["tokens"], "warm_seconds": summary["seconds"]}
    row |= {f"warm {name}": value for name, value in scores(task, str(folder / "warm"), folder / "after-warm").items()}
    if args.steps:
        values = [f"model={folder / 'warm'}", f"steps={args.steps}", f"seed={seed}", "validation.every=0"]
        if not args.float32:
            values.append("optimizer.autocast=bfloat16")  # twice as fast where a processor multiplies in bfloat16
        recipe = load_recipe("tiny-grpo", [*values, *args.set])
        result = train(recipe, folder / "train", resume=(folder / "train").exists())
        row["generated_tokens"] = result.progress.generated_tokens
        after = scores(task, str(result.checkpoint), folder / "after-training")
        row |= {f"trained {name}": value for name, value in after.items()}
    row["seconds"] = round(time.perf_counter() - began)
    record.write_text(json.dumps(row), encoding="utf-8")
    return row


def scores(task: Task, model: str, out: Path) -> dict[str, Any]:
    """Returns EM, in the mean and by question, searches and legal outputs of a model's greedy episodes."""
    agent = load_agent("search-r1")
    found: dict[str, Any] = {**evaluate_model(task, agent, dict.fromkeys(agent.roles, model), out)}
    em = em_by_question(out)
    mean = float(np.mean(list(em.values())))
    return {"em": mean, BY_QUESTION: em, "searches": found["searches"], "legal": found["legal"]}


def contrast(rows: list[dict[str, Any]], when: str) -> dict[str, Any]:
    """Returns the paired difference in EM, its interval and the verdict."""
    kept = [
        {"arm": row["arm"], "seed": row["seed"]}
        | {key: row[f"{when} {key}"] for key in ("em", BY_QUESTION) if f"{when} {key}" in row}
        for row in rows
    ]
    kept.sort(key=lambda row: row["seed"])
    masked, plain = ems_of([[row for row in kept if row["arm"] == arm] for arm in ARMS])
    tested = tested_differences(masked - plain)
    wins = "masked wins" if tested["difference"] > 0 else "plain wins"
    by_seed = (masked - plain).mean(axis=1).tolist()
    return {"after": when, **tested, "by seed": by_seed, "verdict": wins if excludes_0(tested) else "not resolved"}


if __name__ == "__main__":
    main()
