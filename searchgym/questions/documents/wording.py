"""Wording of generated documents and their questions, read from `wording.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from searchgym.options.yaml import read_yaml

Pair = Sequence[Sequence[str]]
"""Two halves of a set of templates: one for training and validation, and one for test."""
FILE: Final = Path(__file__).with_name("wording.yaml")


class SubjectKind(NamedTuple):
    """Properties of all documents about one kind of subject."""

    share: float
    """Share of the kind among the documents."""
    name: str
    """Kind of the invented word in the titles, one of `names.ENDS`."""
    mention: str
    """Template of the subject's name in running text: ``{title}``, ``{name}`` without the bracket, ``{note}`` in it."""
    noun: str
    titles: Sequence[str]
    """Templates of titles; near-copies have the same word in different templates."""
    quantities: Sequence[str]
    when: Sequence[str]
    """Years, camps or voyages at which each quantity was counted."""


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Templates of documents and questions."""

    kinds: Mapping[str, SubjectKind]
    """Kinds of subjects by name."""
    counts: Mapping[str, Pair]
    """Templates for counts: ``state`` on a page, ``part`` for a smaller and ``error`` for a wrong number of the things,
    and ``ask``, a question for one count."""
    questions: Mapping[str, Pair]
    """Templates of questions by kind, for ``{a}``, ``{b}`` and ``{c}``; a chain is composed from the links."""
    links: Mapping[str, Mapping[str, Any]]
    """Relations with one object per subject: ``from`` and ``to`` (kinds), ``state``, ``decoy``, ``noun``, ``ask``."""
    lists: Mapping[str, Mapping[str, Any]]
    """Relations to several institutions: ``from`` (kind), ``state``, and ``verb``, a phrase for the institutions."""
    headings: Pair
    fillers: Pair
    """Clauses that state no fact, with invented people, towns, things, dates and numbers."""
    things: Sequence[str]
    adjectives: Sequence[str]
    months: Sequence[str]


@functools.cache
def wording() -> Wording:
    """Returns the templates."""
    data = read_yaml(FILE)
    kinds = {name: SubjectKind(**kind) for name, kind in data.pop("kinds").items()}
    return Wording(kinds=kinds, **data)
