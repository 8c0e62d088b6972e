"""The models of a recipe's keys, and their samplers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.rollout.loading import load_model
from searchgym.train.plan.sampled import start_of
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
    """Folder of the adapter to continue training, with `model` as its base; None without one."""


def load_keys(recipe: Recipe, keys: Iterable[Key]) -> dict[str, Loaded]:
    """Loads the models of keys; adapters on the same base share its weights, other keys have separate weights.

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
        else:  # a copy that shares the weights but not the modules, so that it can get its own adapter
            base: Any = bases[name].model
            model = copy.deepcopy(base, {id(t): t for t in (*base.parameters(), *base.buffers())})
        loaded[key.name] = Loaded(model, bases[name].tokenizer, adapter)
    return loaded


def separate_adapters(recipe: Recipe) -> bool:
    """Returns True if trained keys are sampled as adapters apart from their base; see `SamplerKind.separate`."""
    return recipe.lora.rank > 0 and recipe.rollout.sampler.separate()


def computed_in(recipe: Recipe) -> str:
    """Returns the number type of the learner's matrix products."""
    return recipe.optimizer.autocast or recipe.learner.dtype
