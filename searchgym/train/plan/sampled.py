"""What samplers are told about a recipe's keys before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from searchgym.rollout.folders import adapter_base, is_adapter, local_folder
from searchgym.rollout.sampler_kind import SampledKey, SampledRun
from searchgym.train.learner.lora import adapter_config
from searchgym.train.recipe.keys import Key
from searchgym.train.recipe.recipe import Recipe


def start_of(recipe: Recipe, key: Key) -> tuple[str, Path | None]:
    """Returns a key's initial model, and the adapter on it to continue training, if any."""
    folder = local_folder(key.recipe.model)  # plans call this too, which must not access the hub
    if recipe.lora.rank and not key.frozen and folder is not None and is_adapter(folder):
        return adapter_base(folder), folder
    return key.recipe.model, None


def sampled_keys(recipe: Recipe, keys: Iterable[Key]) -> list[SampledKey]:
    """Returns the descriptions of keys for their sampler, without models."""
    return [SampledKey(key.name, start_of(recipe, key)[0], not key.frozen) for key in keys]


def sampled_run(recipe: Recipe) -> SampledRun:
    """Returns the settings that the samplers of a recipe's keys share."""
    return SampledRun(
        weights=recipe.learner.dtype,
        autocast=recipe.optimizer.autocast,
        requests=recipe.rollout.concurrency,
        adapter=adapter_config(recipe.lora) if recipe.lora.rank else None,
    )
