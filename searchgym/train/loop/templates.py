"""Chat templates of a run: the arguments of each model key's, and the date that they show."""

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
    """Returns the recipe as a run records it, and the arguments of each key's template, with the date if it shows one.

    Args:
        recipe: If a template shows the date, it gets today's, unless it has one.
        keys: Its keys.
        tokenizers: Key to tokenizer.

    Raises:
        UsageError: No template that an argument is for names it; see `check_template`.
    """
    shared = [key.name for key in keys if not recipe.models or recipe.models[key.name].template is None]
    given = {name: value for name, value in recipe.template.items() if name != DATE}
    check_template([tokenizers[name] for name in shared], given)
    check_template(tokenizers.values(), {DATE: recipe.template[DATE]} if DATE in recipe.template else {})
    for name, options in recipe.models.items():
        check_template([tokenizers[name]], options.template or {})
    day = recipe.template.get(DATE, datetime.date.fromisoformat(TODAY))
    made = {key.name: fitted(tokenizers[key.name], {DATE: day} | key.recipe.template) for key in keys}
    if any(DATE in own for own in made.values()):
        recipe = replace(recipe, template=recipe.template | {DATE: day})
    return recipe, made
