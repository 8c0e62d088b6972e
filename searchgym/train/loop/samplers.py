"""The models of a recipe's keys, and their samplers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.rollout.folders import adapter_base, is_adapter, local_folder
from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import Samplers
from searchgym.rollout.sampler_kind import SampledKey, SampledRun
from searchgym.train.learner.lora import adapter_config
from searchgym.train.recipe.keys import Key
from searchgym.train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Loaded:
    """A key's tokenizer, and its model at the start of the run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    adapter: Path | None = None
    """Folder of the adapter whose training goes on; the model is its base then."""


def load_keys(recipe: Recipe, keys: Iterable[Key]) -> dict[str, Loaded]:
    """Loads the models of keys; adapters on one base share its weights, and any other key has separate weights.

    Raises:
        SearchGymError: See `load_model`.
    """
    loaded: dict[str, Loaded] = {}
    bases: dict[str, Loaded] = {}
    for key in keys:
        name, adapter = start_of(recipe, key)
        if not recipe.lora.rank or name not in bases:
            bases[name] = Loaded(*load_model(name, recipe.learner.dtype))
            model = bases[name].model
        else:
            model = _sharing(bases[name].model)
        loaded[key.name] = Loaded(model, bases[name].tokenizer, adapter)
    return loaded


def start_of(recipe: Recipe, key: Key) -> tuple[str, Path | None]:
    """Returns the model that a key's weights start from, and the adapter on it whose training goes on, if any."""
    folder = local_folder(key.recipe.model)  # a plan, too, asks for it, and must not ask the hub
    if recipe.lora.rank and not key.frozen and folder is not None and is_adapter(folder):
        return adapter_base(folder), folder
    return key.recipe.model, None


def _sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a copy of a model that shares its weights but not its modules, so that it can get its own adapter."""
    model_: Any = model
    shared: PreTrainedModel = copy.deepcopy(model_, {id(t): t for t in (*model_.parameters(), *model_.buffers())})
    return shared


def start_samplers(recipe: Recipe, keys: Sequence[Key], loaded: Mapping[str, Loaded]) -> Samplers:
    """Starts a sampler for each key; see `SamplerKind.open`.

    Raises:
        SearchGymError: The sampler's library is missing, or an engine does not start.
    """
    sampled = [
        replace(key, model=loaded[key.name].model, tokenizer=loaded[key.name].tokenizer)
        for key in sampled_keys(recipe, keys)
    ]
    return recipe.rollout.sampler.open(sampled, sampled_run(recipe))


def sampled_keys(recipe: Recipe, keys: Iterable[Key]) -> list[SampledKey]:
    """Returns keys as their sampler sees them, without their models."""
    return [SampledKey(key.name, start_of(recipe, key)[0], not key.frozen) for key in keys]


def sampled_run(recipe: Recipe) -> SampledRun:
    """Returns what the samplers of a recipe's keys have in common."""
    return SampledRun(
        weights=recipe.learner.dtype,
        autocast=recipe.optimizer.autocast,
        requests=recipe.rollout.concurrency,
        adapter=adapter_config(recipe.lora) if recipe.lora.rank else None,
    )


def with_sampler(recipe: Recipe) -> Recipe:
    """Returns a recipe with the sampler that samples here, where its own chooses between others."""
    return replace(recipe, rollout=replace(recipe.rollout, sampler=recipe.rollout.sampler.chosen()))


def separate_adapters(recipe: Recipe) -> bool:
    """Returns whether the trained keys are sampled as adapters beside their base; see `SamplerKind.separate`."""
    return recipe.lora.rank > 0 and recipe.rollout.sampler.separate()


def computed_in(recipe: Recipe) -> str:
    """Returns the number type of the learner's matrix products."""
    return recipe.optimizer.autocast or recipe.learner.dtype
