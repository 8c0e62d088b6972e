"""Sampling ahead of learning beside taking turns: steps per hour, and what stale samples do to EM.

    python benchmarks/ahead.py [--staleness 0 1 4] [--seeds 0] [--steps 12] [--latency 0.1] [--out runs/ahead] [--json]

Trainings of ``tiny-grpo`` with ``loss.importance_cap: 2`` and nothing else changed, their retriever slowed down to
``--latency`` seconds per call, as one behind a network is; with ``--sampler vllm`` sampled by vLLM. Steps per hour are
counted between the ends of the first and the last step, validation apart. EM is that of greedy episodes on the
validation questions, by steps. A training that is there stays; one that was stopped goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit_rows
from searchgym.corpora.files import iter_jsonl
from searchgym.records import Hit
from searchgym.train.recipe import Recipe, load_recipe
from searchgym.train.run import load_parts, trainer_of
from searchgym.train.run_folder import Row


class Slow:
    """A retriever whose calls take a while, as those of a server that answers several at once.

    Args:
        index: What is searched.
        latency: Seconds of a call.
    """

    calls_at_once = 8

    def __init__(self, index: Any, latency: float) -> None:
        self._index, self._latency = index, latency

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the index's hits, later."""
        time.sleep(self._latency)
        found: list[list[Hit]] = self._index.search(queries, k)
        return found


def main() -> None:
    """Trains, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4], help="steps ahead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the trainings")
    parser.add_argument("--steps", type=int, default=12, help="of each training")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of a retriever's call")
    parser.add_argument("--every", type=int, default=4, help="steps between validations")
    parser.add_argument("--sampler", default="transformers", help="transformers or vllm")
    parser.add_argument("--out", type=Path, default=Path("runs/ahead"), help="folder of the trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = []
    for seed in args.seeds:
        for staleness in args.staleness:
            print(f"staleness {staleness}, seed {seed} ...", file=sys.stderr)
            rows.append({"staleness": staleness, "seed": seed} | trained(args, staleness, seed))
    emit_rows(rows, args.json, "trainings", f"tiny-grpo by {args.sampler}, a retriever's call takes {args.latency:g} s")
    emit_rows([mean_of(rows, staleness) for staleness in args.staleness], args.json, "means", "means over seeds")


def recipe_of(args: Any, staleness: int, seed: int) -> Recipe:
    """Returns the recipe of a training."""
    settings = [f"seed={seed}", f"steps={args.steps}", f"rollout.staleness={staleness}", "loss.importance_cap=2"]
    settings += [f"validation.every={args.every}", "checkpoint.every=4", f"rollout.sampler={args.sampler}"]
    if args.sampler == "vllm":
        settings += ["rollout.vllm.max_context=2048", "rollout.vllm.cache_gib=2", "rollout.vllm.eager=true"]
    return load_recipe("tiny-grpo", settings)


def trained(args: Any, staleness: int, seed: int) -> dict[str, float]:
    """Returns the figures of a training, which is made if it is not there."""
    recipe, out = recipe_of(args, staleness, seed), args.out / f"{args.sampler}-{staleness}-{seed}"
    if not (out / "done").exists():
        parts = load_parts(recipe, out)
        slow: Any = Slow(parts.task.retriever, args.latency)
        parts.rollout.task = dataclasses.replace(parts.task, retriever=slow)
        ends: list[tuple[float, float]] = []

        def note(row: Row) -> None:
            if row["step"]:
                ends.append((time.perf_counter(), row.get("time/validation", 0.0)))

        with contextlib.closing(parts):
            trainer_of(recipe, parts, out, resume=out.exists(), report=note).run()
        seconds = ends[-1][0] - ends[0][0] - sum(validation for _, validation in ends[1:])
        (out / "done").write_text(str(3600 * (len(ends) - 1) / seconds), encoding="utf-8")
    rows = [row for _, row in iter_jsonl(out / "metrics.jsonl")]
    em = {f"EM at {int(row['step'])}": row["validation/em"] for row in rows if "validation/em" in row}
    stale = [row["rollout/staleness"] for row in rows[1:]]
    spanning = statistics.mean(row["rollout/spanning"] for row in rows[1:])
    hour = float((out / "done").read_text(encoding="utf-8"))
    return {"steps per hour": hour, "mean staleness": statistics.mean(stale), "episodes that span": spanning} | em


def mean_of(rows: Sequence[dict[str, float]], staleness: int) -> dict[str, float]:
    """Returns the means over seeds."""
    own = [row for row in rows if row["staleness"] == staleness]
    return {name: statistics.mean(row[name] for row in own) for name in own[0] if name != "seed"}


if __name__ == "__main__":
    main()
