"""Lists of what a recipe may say, for ``searchgym list`` and the reference: its options and its credit terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from searchgym.options import find_kind, kinds
from searchgym.options.describe import OptionDescription, default_text, described, summary
from searchgym.train.credit.term import Term
from searchgym.train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class DescribedTerm:
    """A credit term as documentation shows it."""

    name: str
    """Name under ``credit`` in a recipe."""
    options: str
    """Options of the term with their defaults; every term has ``weight`` and ``roles`` as well."""
    text: str
    """What the term rewards, in one sentence."""


def recipe_options() -> list[OptionDescription]:
    """Returns every option of a recipe in its order, with those of each kind that ships or is installed."""
    return list(described(Recipe))


def term_options(name: str) -> list[OptionDescription]:
    """Returns the options of a credit term.

    Raises:
        UnknownNameError: No term has that name; the nearest is suggested.
    """
    return list(described(find_kind(Term, name), f"credit.{name}."))


def credit_terms() -> Iterator[DescribedTerm]:
    """Yields every credit term that ships or is installed."""
    shared = {field.name for field in dataclasses.fields(Term)}
    for name in kinds(Term):
        cls = find_kind(Term, name)
        fields = [field for field in dataclasses.fields(cls) if field.name not in shared]
        yield DescribedTerm(name, ", ".join(f"{each.name}={default_text(each)}" for each in fields), summary(cls))
