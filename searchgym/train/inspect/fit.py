"""Whether a plan fits the devices, how long the run takes, and which changes of the recipe would make it fit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import iter_jsonl
from searchgym.errors import CardError, UsageError
from searchgym.train.inspect.plan import PHASES, Part, engine_gib, plan
from searchgym.train.inspect.shapes import model_shape
from searchgym.train.recipe.load import check_recipe
from searchgym.train.recipe.recipe import Recipe, recipe_values
from searchgym.train.run.folder import METRICS

MOST: Final = 3
"""Number of suggestions."""
RANK: Final = 64
"""Rank of the adapter that is suggested."""

Values = dict[str, Any]
"""Values of a recipe by dotted key."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of a device beside what a plan needs of it."""

    device: str
    capacity: float
    """GiB that the device has; infinite if that is not checked."""
    need: float
    """GiB in the phase that needs most."""
    phase: str
    """That phase."""

    @property
    def left(self) -> float:
        """GiB that are left in that phase; negative if they do not suffice."""
        return self.capacity - self.need


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes of a recipe with which it fits."""

    changes: tuple[str, ...]
    """Overrides, ``KEY=VALUE``."""
    left: float
    """GiB left on the fullest device."""


def fits_of(parts: Sequence[Part], memory: Mapping[str, float]) -> list[Fit]:
    """Returns capacity and need of each device of a plan."""
    found = []
    for device in dict.fromkeys(part.device for part in parts):
        own = [part for part in parts if part.device == device]
        need, phase = max(
            ((sum(part.gib for part in own if phase in part.phases), phase) for phase in PHASES),
            key=lambda pair: pair[0],
        )
        found.append(Fit(device, memory.get(device, math.inf), need, phase))
    return found


def suggestions(recipe: Recipe, gpus: int, gpu_gib: float, memory: Mapping[str, float]) -> list[Suggestion]:
    """Returns the smallest sets of changes with which a recipe fits, by the plan's own arithmetic.

    Args:
        recipe: Recipe that does not fit, or that needs more GPUs.
        gpus: Number of GPUs.
        gpu_gib: GiB of memory of each GPU.
        memory: GiB by device; a device that is left out is not checked.
    """
    base = _on_gpus(recipe, gpus)
    levers = list(_levers(recipe, gpus, gpu_gib))
    found: list[tuple[frozenset[int], Suggestion]] = []
    for size in range(len(levers) + 1):
        for chosen in itertools.combinations(range(len(levers)), size):
            if any(smaller <= set(chosen) for smaller, _ in found):
                continue  # fewer changes suffice
            values = dict(base)
            for lever in chosen:
                values |= levers[lever]
            left = _left(recipe, values, gpus, gpu_gib, memory)
            if left is not None and left >= 0:
                found.append((frozenset(chosen), Suggestion(_overrides(recipe, values), left)))
            if len(found) == MOST:
                return [suggestion for _, suggestion in found]
    return [suggestion for _, suggestion in found]


def hours(steps: int, step_seconds: float | None, run: Path | None) -> float | None:
    """Returns the hours of a whole run, by the seconds of a step: given, or the mean over an earlier run; else None.

    Args:
        steps: Number of steps of the run.
        step_seconds: Seconds of a step.
        run: Folder of an earlier run.
    """
    if step_seconds is None and run is not None and (run / METRICS).is_file():
        spent = [_seconds(row) for _, row in iter_jsonl(run / METRICS) if row["step"]]
        step_seconds = sum(spent) / len(spent) if spent else None
    return None if step_seconds is None else steps * step_seconds / 3600


def _seconds(row: Mapping[str, float]) -> float:
    """Returns the seconds of a step from its metrics; a step that was drawn ahead counts the wait for it."""
    draw = row.get("time/waited", row.get("time/draw", 0.0))
    return draw + row.get("time/learn", 0.0) + row.get("time/validation", 0.0)


def _on_gpus(recipe: Recipe, gpus: int) -> Values:
    """Returns the changes that a number of GPUs demands: fewer ranks and engines."""
    learner, vllm, values = recipe.learner, recipe.rollout.vllm, Values()
    if gpus and learner.ranks > gpus:
        values |= {"learner.ranks": gpus, "learner.gpus": None}
    if gpus and recipe.rollout.sampler != "transformers" and vllm.replicas * vllm.tensor_parallel > gpus:
        values |= {"rollout.vllm.replicas": 1, "rollout.vllm.tensor_parallel": 1, "rollout.vllm.gpus": None}
    return values


def _levers(recipe: Recipe, gpus: int, gpu_gib: float) -> Iterator[Values]:
    """Yields the changes that save memory, the ones that cost least first."""
    learner, vllm = recipe.learner, recipe.rollout.vllm
    tokens, running = recipe.optimizer.micro_batch_tokens, recipe.rollout.concurrency
    if not learner.gradient_checkpointing:
        yield {"learner.gradient_checkpointing": True}
    if tokens > 1024:
        smaller: Values = {"optimizer.micro_batch_tokens": max(tokens // 4, 1024)}
        if recipe.has_critic:
            critic = recipe.critic.optimizer.micro_batch_tokens
            smaller["critic.optimizer.micro_batch_tokens"] = min(critic, max(critic // 4, 1024))
        yield smaller
    if recipe.rollout.sampler == "transformers" and running > 16:
        yield {"rollout.concurrency": max(running // 4, 16)}
    if recipe.rollout.sampler != "transformers":
        yield from _engine_levers(recipe, gpus, gpu_gib)
    sharded = {"learner.backend": "deepspeed", "learner.zero": 3, "learner.dtype": "bfloat16"}
    if gpus > 1 and (learner.zero, learner.ranks) != (3, gpus):
        yield sharded | {"learner.ranks": gpus}
    if gpus and not learner.offload_optimizer:
        yield {"learner.backend": "deepspeed", "learner.zero": max(learner.zero, 2), "learner.offload_optimizer": True}
    if gpus and not learner.offload_parameters:
        yield sharded | {"learner.offload_optimizer": True, "learner.offload_parameters": True}
    if not recipe.lora.rank:
        whole = {"learner.backend": "torch", "learner.ranks": 1, "learner.gpus": None, "learner.zero": 0}
        whole |= {"learner.offload_optimizer": False, "learner.offload_parameters": False}
        asleep: Values = {"rollout.vllm.sleep": 1} if vllm.sleep == 2 else {}
        if recipe.rollout.sampler == "transformers":  # which would merge the adapter into rounded weights
            asleep = {"rollout.sampler": "vllm", "rollout.vllm.sleep": 1, "rollout.vllm.gpu_share": 0.3}
        yield whole | asleep | {"lora.rank": RANK, "learner.dtype": "bfloat16"}


def _engine_levers(recipe: Recipe, gpus: int, gpu_gib: float) -> Iterator[Values]:
    """Yields the least share of a GPU, in steps of 0.05, that holds weights and a full context; then sleep."""
    need = engine_gib(recipe, model_shape(recipe.model))[1]
    share = round(math.ceil(need / gpu_gib / 0.05) * 0.05, 2)
    if gpus and share != recipe.rollout.vllm.gpu_share:
        yield {"rollout.vllm.gpu_share": share}
    if not recipe.rollout.vllm.sleep and not recipe.rollout.staleness:
        yield {"rollout.vllm.sleep": 1}


def _left(recipe: Recipe, values: Values, gpus: int, gpu_gib: float, memory: Mapping[str, float]) -> float | None:
    """Returns the GiB left on the fullest device with some changes; None if they cannot be."""
    changed = with_values(recipe, values)
    try:
        check_recipe(changed, "suggestion")
        return min(fit.left for fit in fits_of(plan(changed, gpus, gpu_gib), memory))
    except (CardError, UsageError):
        return None


def with_values(recipe: Recipe, values: Values) -> Recipe:
    """Returns a recipe with some values changed, given by their dotted keys."""
    for key, value in values.items():
        recipe = _replaced(recipe, key.split("."), value)
    return recipe


def _replaced(part: Any, path: Sequence[str], value: Any) -> Any:
    inner = value if len(path) == 1 else _replaced(getattr(part, path[0]), path[1:], value)
    return dataclasses.replace(part, **{path[0]: inner})


def _overrides(recipe: Recipe, values: Values) -> tuple[str, ...]:
    """Returns the changes that differ from the recipe, as overrides."""
    known, plain = recipe_values(recipe), {True: "true", False: "false", None: "null"}
    changed = {key: value for key, value in values.items() if known[key] != value}
    shown = {key: plain[v] if v is None or isinstance(v, bool) else str(v) for key, v in changed.items()}
    return tuple(f"{key}={value}" for key, value in shown.items())
