"""The record of a generated world."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Passage, Question, Triple


@dataclass(frozen=True, slots=True)
class World:
    """A generated world, with its pages, questions and facts."""

    spec: WorldSpec
    """Specification that the world was built from."""
    passages: tuple[Passage, ...]
    """Pages, one per entity."""
    questions: tuple[Question, ...]
    """Questions about the pages, each with exactly one answer."""
    triples: tuple[Triple, ...]
    """Facts stated on the pages."""
