"""Arguments of the chat templates of a run's model keys, and the date in the templates."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from searchgym.rollout.foreign.template_options import DATE, check_template, fitted
from searchgym.rollout.foreign.templates import TODAY
from searchgym.train.recipe.keys import Key
from searchgym.train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
