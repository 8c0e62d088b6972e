"""Sampling ahead of learning, compared with taking turns: steps per hour, and the effect of stale samples on EM.

    python benchmarks/ahead.py [--staleness 0 1 4] [--seeds 0] [--steps 12] [--latency 0.1] [--out runs/ahead] [--json]

*Paced.* Steps of ``tiny-grpo`` are sampled once and recorded. Then the loop runs them again for each staleness, with a
sampler that replays the recording at ``--token`` seconds per token, however many rows there are, as an engine on a
separate GPU would; with a learner that takes the fraction ``--share`` of a step in which the two take turns; and with a
retriever whose calls take ``--latency`` seconds. Reported are steps per hour, medians of ``--runs``, stalenesses in
turn.

*Trainings* of ``tiny-grpo`` with ``loss.importance_cap: 2`` and nothing else changed (none if ``--seeds`` is empty).
Their retriever is slowed down to ``--latency`` seconds per call, as behind a network; ``--sampler vllm`` samples with
vLLM. Steps per hour are counted between the ends of the first and the last step, without validation; sampler and
learner share the machine. EM is that of greedy episodes on the validation questions, by step. A finished training in
``--out`` is not repeated; a stopped one is resumed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rollout_engine import Paced, Recorder, Slow

from searchgym.cli.output import emit_rows
from searchgym.corpora.files import iter_jsonl
from searchgym.rollout import Model
from searchgym.rollout.sampler import Deliver, Pull
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train import Recipe, load_recipe
from searchgym.train.algorithms.samples import Sample
from searchgym.train.loop.assembly import Assembly, assemble, trainer_of
from searchgym.train.loop.collect import Collector, TrainingData
from searchgym.train.loop.folder import Row
from searchgym.train.loop.rollout import EngineRollout, SamplerHooks
from searchgym.train.loop.trainer import Trainer


def main() -> None:
    """Runs the paced comparison and the trainings, and prints their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4], help="number of steps to sample ahead")
    parser.add_argument("--runs", type=int, default=3, help="number of paced runs per staleness")
    parser.add_argument("--token", type=float, default=0.01, help="seconds per token in the paced runs")
    parser.add_argument("--share", type=float, default=0.2, help="fraction of a paced step spent learning")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="seeds of the trainings; none to skip them")
    parser.add_argument("--steps", type=int, default=12, help="number of steps per training")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds per retriever call")
    parser.add_argument("--every", type=int, default=4, help="number of steps between validations")
    parser.add_argument("--sampler", default="transformers", help="sampler of the trainings: transformers or vllm")
    parser.add_argument("--out", type=Path, default=Path("runs/ahead"), help="folder of the trainings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.runs:
        title = f"recorded episodes, {args.token:g} s a token, {args.share:.0%} of a step is learning"
        with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints
            found = paced(args)
        emit_rows(found, args.json, "paced", f"{title}; medians of {args.runs} runs")
    rows = []
    for seed in args.seeds:
        for staleness in args.staleness:
            print(f"staleness {staleness}, seed {seed} ...", file=sys.stderr)
            with contextlib.redirect_stdout(sys.stderr):
                rows.append({"staleness": staleness, "seed": seed} | trained(args, staleness, seed))
    if not rows:
        return
    emit_rows(rows, args.json, "trainings", f"tiny-grpo by {args.sampler}, a retriever's call takes {args.latency:g} s")
    emit_rows([mean_of(rows, staleness) for staleness in args.staleness], args.json, "means", "means over seeds")


def recipe_of(args: Any, staleness: int, seed: int) -> Recipe:
    """Returns the recipe of the training with a staleness and a seed."""
    settings = [f"seed={seed}", f"steps={args.steps}", f"rollout.staleness={staleness}", "loss.importance_cap=2"]
    settings += [f"validation.every={args.every}", "checkpoint.every=4", f"rollout.sampler={args.sampler}"]
    if args.sampler == "vllm":
        settings += ["rollout.sampler.max_context=2048", "rollout.sampler.cache_gib=2", "rollout.sampler.eager=true"]
    return load_recipe("tiny-grpo", settings)


def trained(args: Any, staleness: int, seed: int) -> dict[str, float]:
    """Runs a training unless it is finished, and returns its figures."""
    recipe, out = recipe_of(args, staleness, seed), args.out / f"{args.sampler}-{staleness}-{seed}"
    if not (out / "done").exists():
        assembly = assemble(recipe, out)
        slow: Any = Slow(cast(Any, assembly.task.retriever), args.latency)
        assembly.rollout.task = dataclasses.replace(assembly.task, retriever=slow)
        ends: list[tuple[float, float]] = []

        def note(row: Row) -> None:
            if row["step"]:
                ends.append((time.perf_counter(), row.get("time/validation", 0.0)))

        with contextlib.closing(assembly):
            trainer_of(recipe, assembly, out, resume=out.exists(), report=note).run()
        seconds = ends[-1][0] - ends[0][0] - sum(validation for _, validation in ends[1:])
        (out / "done").write_text(str(3600 * (len(ends) - 1) / seconds), encoding="utf-8")
    rows = [row for _, row in iter_jsonl(out / "metrics.jsonl")]
    em = {f"EM at {int(row['step'])}": row["validation/em"] for row in rows if "validation/em" in row}
    stale = [row["rollout/staleness"] for row in rows[1:]]
    spanning = statistics.mean(row["rollout/spanning"] for row in rows[1:])
    hour = float((out / "done").read_text(encoding="utf-8"))
    return {"steps per hour": hour, "mean staleness": statistics.mean(stale), "episodes that span": spanning} | em


def mean_of(rows: Sequence[dict[str, float]], staleness: int) -> dict[str, float]:
    """Returns the figures of one staleness, averaged over seeds."""
    own = [row for row in rows if row["staleness"] == staleness]
    return {name: statistics.mean(row[name] for row in own) for name in own[0] if name != "seed"}


# -- paced ---------------------------------------------------------------------------------------------------------


class Clocked(Paced):
    """Sampler that replays a recording at a fixed pace and records the version of the weights."""

    def stream(self, pull: Pull[Any], deliver: Deliver[Any]) -> None:
        """Replays responses as `Paced` does; each gets the version of the weights at its end."""
        super().stream(pull, lambda key, reply: deliver(key, dataclasses.replace(reply, version=self.version)))

    def update(self, state: Any, version: int) -> None:
        """Records the version of the new weights."""
        self.version = version

    def forget(self) -> None:
        """Does nothing, since there is no cache."""


class Idle:
    """Learner that only waits, as if it ran on another device.

    Args:
        seconds: Seconds per update.
    """

    def __init__(self, seconds: float) -> None:
        self.version, self._seconds = 0, seconds

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples unchanged."""
        return list(samples)

    def learn(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Waits for the seconds of an update."""
        time.sleep(self._seconds)
        self.version += 1
        return {"updates": 1.0}

    def save(self, folder: Path) -> None:
        """Does nothing, since there are no weights to write."""

    def close(self) -> None:
        """Does nothing, since there is nothing to close."""


def paced(args: Any) -> list[dict[str, Any]]:
    """Runs the paced comparison; returns steps per hour for each staleness."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("tiny-grpo", ["validation.every=0", f"steps={args.steps}", "log.tensorboard=false"])
        assembly = assemble(recipe, Path(folder))
        recorder = Recorder(cast(TransformersSampler, assembly.sampler))
        data = TrainingData(assembly.task.questions)
        collector = Collector(recipe, assembly.learner, rollout_by(recorder, recipe, assembly, args.latency), data)
        for step in range(args.steps):
            print(f"recording step {step + 1} of {args.steps} ...", file=sys.stderr)
            collector.draw(step)
        sampler = Clocked(recorder.sampler)
        sampler.replies, sampler.step = recorder.replies, args.token
        collector = Collector(recipe, assembly.learner, rollout_by(sampler, recipe, assembly, args.latency), data)
        began = time.perf_counter()
        collector.draw(0)
        learning = (time.perf_counter() - began) * args.share / (1 - args.share)
        hours: dict[int, list[float]] = {staleness: [] for staleness in args.staleness}
        for run in range(args.runs):
            for staleness in args.staleness:
                print(f"staleness {staleness}, run {run + 1} of {args.runs} ...", file=sys.stderr)
                out = Path(folder) / f"{staleness}-{run}"
                hours[staleness].append(
                    steps_per_hour(recipe, assembly, sampler, learning, staleness, args.latency, out)
                )
    first = statistics.median(hours[args.staleness[0]])
    return [
        {
            "staleness": staleness,
            "steps per hour": statistics.median(found),
            "smallest and largest": [min(found), max(found)],
            "ratio": statistics.median(found) / first,
        }
        for staleness, found in hours.items()
    ]


def rollout_by(sampler: Any, recipe: Recipe, assembly: Assembly, latency: float) -> EngineRollout:
    """Returns the rollout of a recipe with another sampler and a slow retriever."""
    retriever: Any = Slow(cast(Any, assembly.task.retriever), latency)
    task = dataclasses.replace(assembly.task, retriever=retriever)
    roles = assembly.rollout.agent.roles
    model = Model.over("policy", sampler, assembly.models["policy"].format)
    return EngineRollout(recipe, assembly.rollout.agent, dict.fromkeys(roles, model), task, task, canonical=False)


def steps_per_hour(
    recipe: Recipe, assembly: Assembly, sampler: Clocked, learning: float, staleness: int, latency: float, out: Path
) -> float:
    """Runs the loop and returns its steps per hour."""
    rollout = rollout_by(sampler, recipe, assembly, latency)
    ends: list[float] = []
    learner: Any = Idle(learning)
    Trainer(
        dataclasses.replace(recipe, rollout=dataclasses.replace(recipe.rollout, staleness=staleness)),
        out,
        learner=learner,
        tokenizer=assembly.tokenizer,
        data=TrainingData(assembly.task.questions),
        hooks=SamplerHooks(
            rollout=rollout, publish=lambda version: sampler.update(None, version), give_up=rollout.give_up
        ),
        report=lambda row: ends.append(time.perf_counter()),
    ).run()
    return 3600 * (len(ends) - 1) / (ends[-1] - ends[0])


if __name__ == "__main__":
    main()
