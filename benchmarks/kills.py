"""Training whose vLLM engine is killed repeatedly: counts episodes that are lost or trained on twice.

    python benchmarks/kills.py [--episodes 1000] [--kills 5] [--staleness 1] [--seed 0] [--json]

``tiny-grpo`` is sampled by vLLM ahead of the learner. The engine's processes get SIGKILL after random numbers of
responses, drawn in advance. Counted are the episodes that were requested, that returned, and that were trained on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.cli.output import emit
from searchgym.rollout import read_episodes
from searchgym.train import load_recipe
from searchgym.train.algorithms.samples import Sample
from searchgym.train.loop.assembly import assemble, trainer_of

STEP = 128
"""Number of episodes per step."""


def main() -> None:
    """Runs the training, kills its engine, and prints how many episodes were lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--episodes", type=int, default=1000, help="minimum number of episodes, rounded up to whole steps"
    )
    parser.add_argument("--kills", type=int, default=5, help="number of times the engine is killed")
    parser.add_argument("--staleness", type=int, default=1, help="number of steps to sample ahead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training and of the moments of killing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    steps = -(-args.episodes // STEP)
    settings = [f"steps={steps}", f"seed={args.seed}", "rollout.questions=16", f"rollout.attempts={STEP // 16}"]
    settings += [f"rollout.staleness={args.staleness}", "loss.importance_cap=2", "rollout.sampler=vllm"]
    settings += ["rollout.sampler.max_context=2048", "rollout.sampler.cache_gib=2", "rollout.sampler.eager=true"]
    settings += ["validation.every=0", "log.tensorboard=false", "log.episodes_every=1"]
    recipe = load_recipe("tiny-grpo", settings)
    moments = sorted(np.random.default_rng(args.seed).integers(1, 2 * steps * STEP, args.kills).tolist())
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:  # DeepSpeed prints
        parts = assemble(recipe, Path(folder))
        engine: Any = parts.sampler
        killed = kill_at(engine.engine.backend, moments)
        trained = count_trained(parts.learner)
        with contextlib.closing(parts):
            rows = trainer_of(recipe, parts, Path(folder) / "run", report=say).run().rows[1:]
            restarts = engine.engine.restarts
        found = Counter(episode.id for episode in read_episodes(Path(folder) / "run" / "episodes.jsonl"))
    emit(
        {
            "asked for": steps * STEP,
            "came back": len(found),
            "twice": sum(count > 1 for count in found.values()),
            "learnt from": len(trained),
            "learnt from twice": sum(count > 1 for count in trained.values()),
            "learnt from and not asked for": len(trained.keys() - found.keys()),
            "engine killed after responses": killed,
            "restarts": restarts,
            "largest mean difference by the probe, nats": max(row.get("probe/difference", 0.0) for row in rows),
            "largest staleness": max(row["rollout/staleness"] for row in rows),
        },
        args.json,
        "episodes",
    )


def say(row: Any) -> None:
    """Prints the step's number to standard error, as a sign of progress."""
    print(f"step {row['step']:.0f} ...", file=sys.stderr)


def kill_at(backend: Any, moments: Sequence[int]) -> list[int]:
    """Arranges to kill an engine's processes after given numbers of responses; returns the list of kills so far."""
    step, left, ended, killed = backend.step, list(moments), 0, list[int]()

    def killing() -> Any:
        nonlocal ended
        found = step()
        ended += len(found)
        if left and ended >= left[0]:
            killed.append(left.pop(0))
            for process in backend.processes:
                os.kill(process, signal.SIGKILL)
        return found

    backend.step = killing
    return killed


def count_trained(learner: Any) -> Counter[str]:
    """Wraps a learner's `learn` to count how often each episode is trained on; returns the counter."""
    learn, trained = learner.learn, Counter[str]()

    def counting(samples: Sequence[Sample], step: int) -> Any:
        trained.update({sample.episode_id for sample in samples})
        return learn(samples, step)

    learner.learn = counting
    return trained


if __name__ == "__main__":
    main()
