"""What a step gains if long episodes run on beside later steps: two arms, paired by seed, one record each.

    python studies/partial_rollouts/partial.py --seeds 1 2 3 4 5 [--out runs/partial] [--records DIR] [--json]

Searches of one question in sixteen take `SECONDS` longer, as those of a slow tool. README.md has the protocol. What has
a record is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from searchgym.cli.output import emit, say
from searchgym.corpora.files import write_atomic
from searchgym.eval import t_interval
from searchgym.records import Hit
from searchgym.retrieval.retriever import Retriever
from searchgym.train import load_recipe
from searchgym.train.loop.assembly import assemble, trainer_of

SECONDS: Final = 4.0
"""Seconds that a search of a slow question takes."""
ONE_IN: Final = 16
"""One of so many questions is slow."""
ARMS: Final = {"waits": [], "partial": ["rollout.partial=1"]}
VALUES: Final = [
    "rollout.staleness=1",
    "loss.importance_cap=2",
    "max_generated_tokens=80000",
    "steps=40",
    "validation.every=40",
    "checkpoint.every=0",
    "log.curve=false",
    "log.tensorboard=false",
]


class SlowForSome:
    """A retriever that takes longer for some questions."""

    calls_at_once, queries_at_once = 128, 1

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the hits of the retriever behind it, later if the question is slow."""
        if any(zlib.crc32(id.encode()) % ONE_IN == 0 for id in question_ids):
            time.sleep(SECONDS)
        return self._retriever.search(queries, k)


def run_unit(arm: str, seed: int, out: Path) -> dict[str, float | int | str | list[float]]:
    """Trains an arm with a seed; returns its record."""
    recipe = load_recipe("tiny-grpo", [*VALUES, *ARMS[arm], f"seed={seed}"])
    with contextlib.redirect_stdout(sys.stderr), contextlib.closing(assemble(recipe, out)) as assembly:
        retriever = assembly.task.retriever
        assert isinstance(retriever, Retriever)
        assembly.rollout.task = dataclasses.replace(assembly.task, retriever=SlowForSome(retriever))
        ends: list[float] = []
        result = trainer_of(recipe, assembly, out, report=lambda row: ends.append(time.monotonic())).run()
    rows = [row for row in result.rows if row["step"] > 0]
    scores = [row["validation/em"] for row in result.rows if "validation/em" in row]
    return {
        "arm": arm,
        "seed": seed,
        "steps": len(rows),
        "seconds": [round(after - before, 3) for before, after in itertools.pairwise(ends)],
        "waited": round(sum(row["time/waited"] for row in rows), 1),
        "generated_tokens": result.progress.generated_tokens,
        "staleness": max(row["rollout/staleness"] for row in rows),
        "em": scores[-1],
        "em_before": scores[0],
    }


def interval(values: Sequence[float]) -> str:
    """Returns mean and 95 % interval by Student's t over seeds, as text."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3f}"
    low, high = t_interval(np.array(values))
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def summary(records: Path) -> dict[str, str]:
    """Returns the contrast of the two arms over the seeds that both have."""
    rows = [json.loads(path.read_text()) for path in sorted(records.glob("*.json"))]
    by_arm = {arm: {row["seed"]: row for row in rows if row["arm"] == arm} for arm in ARMS}
    seeds = sorted(by_arm["waits"].keys() & by_arm["partial"].keys())
    if not seeds:
        return {}
    pairs = [(by_arm["waits"][seed], by_arm["partial"][seed]) for seed in seeds]
    # the last step waits for all groups that are left, and is validated
    per_step = [[float(np.median(row["seconds"][1:-1])) for row in pair] for pair in pairs]
    ratios = [one / two for one, two in per_step]
    return {
        "seeds": " ".join(map(str, seeds)),
        "seconds a step, waits": interval([one for one, _ in per_step]),
        "seconds a step, partial": interval([two for _, two in per_step]),
        "ratio": interval(ratios),
        "EM, waits": interval([one["em"] for one, _ in pairs]),
        "EM, partial": interval([two["em"] for _, two in pairs]),
        "EM, partial less waits": interval([two["em"] - one["em"] for one, two in pairs]),
        "most steps old": f"{max(one['staleness'] for one, _ in pairs):g} and "
        f"{max(two['staleness'] for _, two in pairs):g}",
    }


def main() -> None:
    """Runs what has no record yet, and prints the contrast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path("runs/partial"))
    parser.add_argument("--records", type=Path, help="folder of records; default: OUT/records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    records = options.records or options.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for arm in ARMS:
            path = records / f"{arm}-{seed}.json"
            if path.exists():
                continue
            say(f"{arm}, seed {seed} ...")
            record = run_unit(arm, seed, options.out / f"{arm}-{seed}-{time.time_ns()}")
            with write_atomic(path) as file:
                file.write(json.dumps(record).encode() + b"\n")
    emit(summary(records), options.json)


if __name__ == "__main__":
    main()
