"""Waypoint coverage: the share of the entities on a question's path that an episode's searches earned."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.records import Question, Searched, title_key
from searchgym.text import WORD, base_title, holds, norm

RULES: Final = ("query", "page", "led", "few")
"""What may have to hold of a search that earns a waypoint; see `coverage`."""


@dataclass(frozen=True, slots=True)
class PathEntity:
    """An entity between a question and its answer that has a page of its own."""

    name: str
    """Name as the question's evidence gives it."""
    pages: frozenset[str]
    """Titles of its gold pages, as `title_key` writes them."""


def waypoints_of(question: Question) -> tuple[PathEntity, ...]:
    """Returns the waypoints of a question in reading order.

    They are the subjects and objects of its evidence that have a gold page, less the answers and what the question
    names. Single facts and comparisons of two named pages have none; nor has a question without evidence triples.
    """
    answers = {norm(gold) for gold in question.golds}
    pages: dict[str, set[str]] = {}
    for title in question.gold_titles or ():
        for name in {norm(title), norm(base_title(title))}:
            pages.setdefault(name, set()).add(title_key(title))
    entities = dict.fromkeys(name for fact in question.evidences or () for name in (fact.subject, fact.object))
    found = {
        norm(name): PathEntity(name, frozenset(pages[norm(name)]))
        for name in entities
        if norm(name) in pages and norm(name) not in answers and not holds(question.text, name)
    }
    return tuple(found.values())


class Names:
    """The names of a graph's entities, which queries are searched for.

    Args:
        names: Names of entities; brackets at their ends are left out.
        ordinary: Words in small letters that are no names, although an entity may be called so ("her").
    """

    def __init__(self, names: Iterable[str], ordinary: Collection[str] = ()) -> None:
        self._ordinary = frozenset(ordinary)
        self._names = self._tidy(names)
        self._longest = _longest(self._names)

    @classmethod
    def of(cls, questions: Iterable[Question]) -> Names:
        """Collects the entities with a gold page in some questions; words in small letters in them are no names."""
        names, ordinary = dict[str, None](), set[str]()
        for question in questions:
            names.update(dict.fromkeys(question.gold_titles or ()))
            ordinary |= {word for word in WORD.findall(question.text) if word.islower()}
        return cls(names, ordinary)

    def count(self, text: str, more: Iterable[str] = ()) -> int:
        """Returns how many different entities a text names, whatever the case; of names in names only the longest.

        Args:
            text: Text to search, such as a query.
            more: Further names of entities.
        """
        here = self._tidy(more)
        longest = max(self._longest, _longest(here))
        words, found, place = norm(text).split(), set[str](), 0
        while place < len(words):
            sizes = range(min(longest, len(words) - place), 0, -1)
            spans = (" ".join(words[place : place + size]) for size in sizes)
            name = next((span for span in spans if span in self._names or span in here), None)
            if name is not None:
                found.add(name)
            place += 1 if name is None else name.count(" ") + 1
        return len(found)

    def _tidy(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(norm(base_title(name)) for name in names) - self._ordinary - {""}


def _longest(names: Collection[str]) -> int:
    """Returns the number of words of the longest name."""
    return max((name.count(" ") + 1 for name in names), default=0)


def coverage(
    points: Sequence[PathEntity], searches: Sequence[Searched], names: Names, rules: Collection[str], most_names: int
) -> float:
    """Returns the share of a question's waypoints that an episode's searches earned; 0 if it has none.

    Args:
        points: The question's waypoints.
        searches: Searches of the episode in order. Those of one turn do not see each other's hits.
        names: Names of the graph's entities; titles of the episode's hits count as well.
        rules: What must hold for a waypoint, all by one search; see `searchgym.train.credit.terms.waypoint`.
        most_names: Number of entities that a query may name under the rule ``few``.
    """
    if not points:
        return 0.0
    titles = {hit.passage.title for search in searches for hit in search.hits}
    led, earned = set[int](), set[int]()
    for _, turn in itertools.groupby(searches, key=lambda search: search.turn):
        of_turn = list(turn)
        for search in of_turn:
            if "few" in rules and names.count(search.query, titles) > most_names:
                continue
            found = {title_key(hit.passage.title) for hit in search.hits}
            earned |= {
                i
                for i, point in enumerate(points)
                if ("query" not in rules or holds(search.query, point.name))
                and ("page" not in rules or found & point.pages)
                and ("led" not in rules or i in led)
            }
        texts = [f"{hit.passage.title} {hit.passage.text}" for search in of_turn for hit in search.hits]
        led |= {i for i, point in enumerate(points) if any(holds(text, point.name) for text in texts)}
    return len(earned) / len(points)
