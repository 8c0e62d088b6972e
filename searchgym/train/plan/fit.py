"""Checks if a plan fits the devices, and suggests changes with which it fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.errors import CardError, UsageError
from searchgym.options import Source, kind_name, plain, read
from searchgym.rollout.sampler_kind import Part
from searchgym.train.plan.plan import need_of, needs_of, plan
from searchgym.train.plan.shapes import model_shape
from searchgym.train.recipe.load import check_recipe, override_values
from searchgym.train.recipe.options import Checkpointing, LearnerOptions
from searchgym.train.recipe.recipe import Recipe, override_of, recipe_keys

MAX_SUGGESTIONS: Final = 3
"""Maximum number of suggestions."""
RANK: Final = 64
"""Rank of a suggested LoRA adapter."""

Values = dict[str, Any]
"""Recipe values by dotted key."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Available and required memory of one device."""

    device: str
    capacity: float
    """Memory of the device in GiB; infinite if it is not checked."""
    need: float
    """Required memory, in GiB, in the phase that needs most."""
    phase: str
    """Phase that needs most memory."""

    @property
    def left(self) -> float:
        """Memory left in that phase, in GiB; negative if there is too little."""
        return self.capacity - self.need


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes with which a recipe fits."""

    changes: tuple[str, ...]
    """Changes as overrides, ``KEY=VALUE``."""
    left: float
    """Memory left on the fullest device, in GiB."""


def fits_of(parts: Sequence[Part], memory: Mapping[str, float]) -> list[Fit]:
    """Returns the available and required memory of each device in a plan."""
    fits = []
    for device, needs in needs_of(parts).items():
        phase = max(needs, key=lambda name: needs[name])
        fits.append(Fit(device, memory.get(device, math.inf), needs[phase], phase))
    return fits


def suggestions(recipe: Recipe, gpus: int, gpu_gib: float, memory: Mapping[str, float]) -> list[Suggestion]:
    """Returns the smallest sets of changes with which a recipe fits, estimated by `plan`.

    Args:
        recipe: Recipe that does not fit, or that needs more GPUs.
        gpus: Number of GPUs.
        gpu_gib: GiB of memory of each GPU.
        memory: GiB by device; a device that is left out is not checked.
    """
    base: Values = {}
    if gpus:  # fewer ranks and engines if the recipe has too many
        base = _inside("learner.backend", recipe.learner.backend.fitted(gpus))
        base |= _of_sampler(recipe, recipe.rollout.sampler.chosen(ask=False).fitted(gpus))
    levers, now = list(_levers(recipe, gpus, gpu_gib)), plain(recipe)
    by_keys: dict[frozenset[str], Suggestion] = {}
    for size in range(len(levers) + 1):
        for chosen in itertools.combinations(levers, size):
            keys = frozenset(next(iter(lever)) for lever in chosen)
            if len(by_keys) == MAX_SUGGESTIONS or any(smaller <= keys for smaller in by_keys):
                continue  # fewer or weaker changes suffice
            values = dict(base)
            for lever in chosen:
                values |= lever
            try:
                changed = with_values(recipe, values)
                check_recipe(changed, "suggestion")
                left = min(fit.left for fit in fits_of(plan(changed, gpus, gpu_gib), memory))
            except (CardError, UsageError):
                continue
            if left >= 0:
                changes = tuple(override_of(key, value) for key, value in values.items() if _value(now, key) != value)
                by_keys[keys] = Suggestion(changes, left)
    return list(by_keys.values())


def _levers(recipe: Recipe, gpus: int, gpu_gib: float) -> Iterator[Values]:
    """Yields changes that save memory, in order of increasing cost."""
    sampler = recipe.rollout.sampler.chosen(ask=False)
    tokens, running = recipe.optimizer.pass_tokens, recipe.rollout.concurrency
    modes: tuple[Checkpointing, ...] = ("none", "selective", "full")
    for mode in modes[modes.index(recipe.learner.gradient_checkpointing) + 1 :]:
        yield {"learner.gradient_checkpointing": mode}
    if tokens > 1024:
        smaller: Values = {"optimizer.micro_batch_tokens": max(tokens // 4, 1024)}
        if recipe.has_critic:
            critic = recipe.critic.optimizer.pass_tokens
            smaller["critic.optimizer.micro_batch_tokens"] = min(critic, max(critic // 4, 1024))
        yield smaller
    if not sampler.engines and running > 16:
        yield {"rollout.concurrency": max(running // 4, 16)}
    need = need_of(recipe, [], model_shape(recipe.model))
    yield from (_of_sampler(recipe, changes) for changes in sampler.lighter(need, gpus, gpu_gib))
    yield from recipe.learner.backend.lighter(gpus)
    if not recipe.lora.rank:
        backend = LearnerOptions().backend
        whole: Values = {} if recipe.learner.backend.trains_adapters else {"learner.backend": kind_name(backend)}
        yield whole | _of_sampler(recipe, sampler.for_adapters()) | {"lora.rank": RANK, "learner.dtype": "bfloat16"}


def _of_sampler(recipe: Recipe, changes: Values) -> Values:
    """Returns changes of a sampler's options by dotted key, with its name if the recipe's sampler is a choice."""
    sampler = recipe.rollout.sampler
    chosen = sampler.chosen(ask=False)
    named = {"kind": kind_name(chosen)} if changes and chosen is not sampler else {}
    return _inside("rollout.sampler", named | changes)


def _inside(section: str, changes: Values) -> Values:
    """Returns changes of a kind's options by dotted key, with the kind's name first."""
    name = {section: changes["kind"]} if "kind" in changes else {}
    return name | {f"{section}.{key}": value for key, value in changes.items() if key != "kind"}


def with_values(recipe: Recipe, values: Values) -> Recipe:
    """Returns a recipe with changed values, given by dotted key."""
    data, overrides = plain(recipe), [override_of(key, value) for key, value in values.items()]
    return read(Recipe, data, override_values(data, overrides, recipe_keys(), Source("suggestion")))


def _value(data: Any, key: str) -> Any:
    """Returns a value in plain data by its dotted key; None if it does not exist."""
    for name in key.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data
