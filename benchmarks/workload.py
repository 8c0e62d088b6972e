"""Whole training steps whose episodes have scripted lengths: seconds and shares of drawing, learning and publishing.

    python benchmarks/workload.py [--workload w] [--model tiny] [--sampler vllm] [--steps 3] [--json] [key=value ...]

The trainer, the engine, the environment and BM25 are the real ones. Only the words of the model are scripted: the
engine samples as many tokens as the script says, whatever they are, and then the script's tokens take their place, so
that every action is legal. So the engine's work is real, except that it reads the last response again in the next turn
(a real one is in its cache). Rewards are scripted too: 18 of 32 groups have a signal, and the others are not learnt.

Workload ``w`` is a recorded step of a model of 1.5 B parameters: 256 episodes of 2.2 turns, with 108 tokens generated
and 246 read by the learner for each (63,000 in all). ``w-short`` generates 23. ``search-r1`` has longer turns and hits,
as in Search-R1's setting, whose steps of 2,560 episodes are predicted: all seconds but those of publishing grow with
the episodes. Lengths of responses are log-normal. Passages are those of ``SEARCHGYM_DATA``, or of a generated world.

Idle is the share of the drawing in which the engine has no request. With one vLLM engine its steps are counted:
generated tokens per step are the rows at work, and the time outside its steps is named. Arguments ``key=value`` change
the recipe.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import yaml
from scripted import Script, ScriptedSampler, Workload

from searchgym.cli.output import emit
from searchgym.rollout import Sampler, TokenFormat
from searchgym.train import load_recipe
from searchgym.train.loop.assembly import assemble, trainer_of

T = TypeVar("T")
SETTING: Final = 2560
"""Episodes of a step in Search-R1's setting: 512 questions, 5 attempts."""
WORKLOADS: Final = {
    "w": Workload(2.2, 108, 107),
    "w-short": Workload(2.2, 23, 107),
    "search-r1": Workload(3.2, 400, 350),
    "mini": Workload(2.2, 40, 20),
}
"""Workloads by name; the lengths of ``search-r1`` are assumed, its limits are those of the paper's recipe."""


def measured_workload(
    workload: Workload, model: str, sampler: str, episodes: int, steps: int, overrides: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Trains some steps on a workload.

    Args:
        workload: Lengths of the episodes.
        model: Folder or name of the model; an adapter of rank 16 is trained unless `overrides` differ.
        sampler: ``vllm`` or ``transformers``.
        episodes: Episodes of a step, in groups of 8.
        steps: Counted steps, after one that warms up.
        overrides: ``key=value`` arguments that change the recipe.
        folder: Existing folder for the run.

    Returns:
        Medians over steps of seconds, shares, speeds and lengths, and memory.
    """
    path = folder / "workload.yaml"
    path.write_text(yaml.safe_dump(recipe_of(workload, model, sampler, episodes, steps + 1)))
    recipe = load_recipe(str(path), overrides)
    scripted: list[ScriptedSampler] = []

    def wrap(inner: Sampler) -> Sampler:
        scripted.append(ScriptedSampler(inner))
        return scripted[-1]

    seconds, rows = dict[str, list[float]](learn=[], publish=[]), list[dict[str, Any]]()
    with closing(assemble(recipe, folder / "run", wrap)) as assembly:
        (one,), format = scripted, next(iter(assembly.models.values())).format
        assert isinstance(format, TokenFormat)
        one.script = Script(format, assembly.task, workload)
        counted = one.clock.watch_steps(one.sampler)
        learner: Any = assembly.learner
        learner.learn = timed(learner.learn, seconds["learn"])
        trainer = trainer_of(recipe, assembly, folder / "run", report=lambda row: report(row))
        publish = trainer._hooks.publish
        trainer._hooks = replace(trainer._hooks, publish=timed(publish, seconds["publish"]))
        before = [0.0, 0.0, 0.0]

        def report(row: Mapping[str, Any]) -> None:
            clock, now = one.clock, time.perf_counter()
            idle = 1 - (clock.busy - before[0]) / row["time/draw"] if rows else None
            inside = (clock.stepping - before[2]) / row["time/draw"] if rows and counted else None
            rows.append({**row, "at": now, "idle": idle, "inside": inside, "steps": clock.steps - before[1]})
            before[:] = [clock.busy, clock.steps, clock.stepping]

        with redirect_stdout(sys.stderr):
            trainer.run()
    return summary(rows, seconds, episodes, counted)


def timed(function: Callable[..., T], seconds: list[float]) -> Callable[..., T]:
    """Returns a function that does the same and appends the seconds of each call."""

    def call(*args: Any, **options: Any) -> T:
        began = time.perf_counter()
        result = function(*args, **options)
        seconds.append(time.perf_counter() - began)
        return result

    return call


def summary(
    rows: Sequence[Mapping[str, Any]], seconds: Mapping[str, Sequence[float]], episodes: int, counted: bool
) -> dict[str, Any]:
    """Returns the medians of the steps after the first one.

    Args:
        rows: Metrics of step 0 and of all steps, with the clock's readings.
        seconds: Seconds of learning in each step, and of publishing, the first time before step 1.
        episodes: Episodes of a step.
        counted: True if the engine's steps were counted.
    """
    later = rows[2:]

    def middle(values: Sequence[float]) -> float:
        return float(statistics.median(values))

    whole = middle([row["at"] - before["at"] for before, row in zip(rows[1:], later, strict=False)])
    draw, publish = middle([row["time/draw"] for row in later]), middle(seconds["publish"][2:])
    learn = middle(seconds["learn"][1:])
    predicted = (whole - publish) * SETTING / episodes + publish
    generated = middle([row["rollout/tokens"] for row in later])
    read = middle([row.get("learner/tokens_read", 0.0) for row in later])  # no group of a small step may have a signal
    return {
        "draw s": draw,
        "learn s": learn,
        "publish s": publish,
        "step s": whole,
        "share draw": draw / whole,
        "share learn": learn / whole,
        "share publish": publish / whole,
        "generated/s": generated / draw,
        "learnt/s": read / learn,
        "idle": middle([row["idle"] for row in later]),
        "engine steps": middle([row["steps"] for row in later]) if counted else None,
        "rows per engine step": middle([row["rollout/tokens"] / row["steps"] for row in later]) if counted else None,
        "outside engine steps": 1 - middle([row["inside"] for row in later]) if counted else None,
        "episodes": episodes,
        "turns": middle([row["rollout/turns"] for row in later]),
        "generated each": generated / episodes,
        "read each": read / episodes,
        "illegal": max(row["rollout/illegal"] for row in later),
        "GiB drawing": max(row["memory/draw"] for row in later),
        "GiB learning": max(row.get("memory/learn", 0.0) for row in later),
        f"steps/hour of {SETTING}": 3600 / predicted,
    }


def recipe_of(workload: Workload, model: str, sampler: str, episodes: int, steps: int) -> dict[str, Any]:
    """Returns the recipe of a workload as the contents of its file."""
    gpu, data = torch.cuda.is_available(), os.environ.get("SEARCHGYM_DATA")
    attempts = min(episodes, 8)
    corpus = Path(data) / "2wikimultihopqa" / "corpus.json" if data else None
    options: dict[str, Any]
    if corpus is not None and corpus.is_file():
        env, options = "searchgym/Corpus-v0", {"corpus": str(corpus.resolve())}
    else:
        env, options = "searchgym/World-v0", {"questions": {"split": "train", "size": 200, "seed": 1}}
    rules = {"top_k": 3, "max_turns": 5, "max_observation_words": workload.words, "reward": "em"}
    engine = {"kind": "vllm", "gpu_share": 0.3, "max_context": 4096} if sampler == "vllm" else {"kind": sampler}
    return {
        "name": "workload", "summary": "scripted lengths", "method": "policy", "model": model, "env": env,
        "env_options": {**options, **rules}, "agent": "search-r1", "steps": steps,
        "rollout": {"questions": episodes // attempts, "attempts": attempts, "concurrency": min(episodes, 256),
                    "sampler": engine, "probe": 0},
        "loss": {"importance_cap": 2.0}, "lora": {"rank": 16, "alpha": 32},
        "optimizer": {"lr": 1e-4, "autocast": "bfloat16", "micro_batch_tokens": 16_384 if gpu else 2048},
        "guard": {"bounds": {"learner/sampler_difference": None}},  # log-probs are of other tokens than the script's
        "validation": {"every": 0}, "checkpoint": {"every": 0},
    }  # fmt: skip


def main() -> None:
    """Measures a workload and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="w")
    parser.add_argument("--model", default="tiny", help="folder or name of the model")
    parser.add_argument("--sampler", choices=("vllm", "transformers"), default="transformers")
    parser.add_argument("--episodes", type=int, default=256, help="episodes of a step: a multiple of 8, or fewer")
    parser.add_argument("--steps", type=int, default=3, help="counted steps, after one that warms up")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    args = parser.parse_args()
    if args.episodes > 8 and args.episodes % 8:
        parser.error(f"--episodes must be a multiple of 8, got {args.episodes}")
    print(f"{args.steps + 1} steps of {args.episodes} episodes ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        figures = measured_workload(
            WORKLOADS[args.workload], args.model, args.sampler, args.episodes, args.steps, args.overrides, Path(scratch)
        )
    if args.json:
        emit({"results": [{"workload": args.workload, "model": args.model, "sampler": args.sampler} | figures]}, True)
    else:
        emit(figures, False, f"workload {args.workload}, {args.model}, {args.sampler}")


if __name__ == "__main__":
    main()
