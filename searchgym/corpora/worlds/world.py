"""A generated world as a plain record."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.cards import WorldSpec
from searchgym.records import Passage, Question, Triple


@dataclass(frozen=True, slots=True)
class World:
    """A generated world: pages, questions and the graph behind them."""

    spec: WorldSpec
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    triples: tuple[Triple, ...]
    """Every fact of every page."""
