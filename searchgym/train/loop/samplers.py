"""The models of a recipe's keys, their samplers, and the arguments of their chat templates."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.rollout.foreign.template_options import DATE, check_template, fitted
from searchgym.rollout.foreign.templates import TODAY
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


def key_templates(
    recipe: Recipe, keys: Sequence[Key], tokenizers: Mapping[str, PreTrainedTokenizerBase]
) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """Returns the recipe with the templates' date, and the arguments of each key's template.

    Args:
        recipe: The recipe. If a template shows the date and the recipe sets none, today's is added.
        keys: Model keys of the recipe.
        tokenizers: Tokenizers by the name of the key.

    Raises:
        UsageError: An argument is used by none of its templates; see `check_template`.
    """
    shared = [key.name for key in keys if not recipe.models or recipe.models[key.name].template is None]
    shared_arguments = {name: value for name, value in recipe.template.items() if name != DATE}
    check_template([tokenizers[name] for name in shared], shared_arguments)
    check_template(tokenizers.values(), {DATE: recipe.template[DATE]} if DATE in recipe.template else {})
    for name, options in recipe.models.items():
        check_template([tokenizers[name]], options.template or {})
    day = recipe.template.get(DATE, datetime.date.fromisoformat(TODAY))
    arguments = {key.name: fitted(tokenizers[key.name], {DATE: day} | key.recipe.template) for key in keys}
    if any(DATE in used for used in arguments.values()):
        recipe = replace(recipe, template=recipe.template | {DATE: day})
    return recipe, arguments
