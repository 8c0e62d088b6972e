"""A question before the filters, and what all shapes share: its words and its steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from searchgym.questions.graphs.facts import PageFact
from searchgym.questions.graphs.graph import Form
from searchgym.questions.source import FactBase
from searchgym.records import Hop

T = TypeVar("T")
Path = tuple[PageFact, ...]
"""Chain of facts: the object of each is the subject of the next."""
YEAR: Final = re.compile(r"\b\d{4}\b")
"""Pattern of a year in a text."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before the filters."""

    shape: str
    """``chain``, ``comparison``, ``bridge-comparison``, ``intersection``, ``veiled``, ``cloze`` or ``cloze-chain``."""
    text: str
    """Text of the question."""
    answer: str
    """Answer to the question."""
    pages: tuple[int, ...]
    """Numbers of the gold pages in reading order."""
    facts: tuple[PageFact, ...] = ()
    """Facts along the path of the question."""
    form: Form | None = None
    """Logical form on the source's graph; None for a cloze."""
    waypoints: tuple[str, ...] = ()
    """Intermediate names that must be found but are not the answer."""
    relations: tuple[str, ...] = ()
    """Relations along the path of the question."""
    steps: tuple[Hop, ...] = ()
    """Decomposition into one-hop questions."""
    names: tuple[str, ...] = ()
    """Other names of the answer; cloze only."""
    named: bool = False
    """Whether the question names its answer or is a yes/no question."""
    queries: tuple[str, ...] = ()
    """Query that should find each page, if its name is not the one."""

    @property
    def hops(self) -> int:
        """Number of pages that must be read."""
        return len(self.pages)


def worded(wording: str, **names: str) -> str:
    """Returns a question with its names filled in; a name that ends in a question mark does not double it."""
    return wording.format(**names).replace("??", "?")


def steps_of(source: FactBase, paths: Sequence[Path]) -> tuple[Hop, ...]:
    """Returns the decomposition of paths; ``#n`` is the placeholder for the answer of hop n."""
    hops: list[Hop] = []
    for path in paths:
        subject = source.mention(path[0].subject)
        for fact in path:
            ask = source.pack.relations[fact.relation].ask or f"What is the {fact.relation} of {{s}}?"
            hops.append(Hop(worded(ask, s=subject), source.object_text(fact)))
            subject = f"#{len(hops)}"
    return tuple(hops)


def value_of(source: FactBase, fact: PageFact) -> str:
    """Returns the object of a fact as questions mention it."""
    return source.object_text(fact) if fact.target is None else source.mention(fact.target)


def take_turns(streams: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yields one item of each stream in turn until all have ended."""
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                yield next(stream)
            except StopIteration:
                left.remove(stream)
