"""Waypoint coverage: the share of the entities on a question's path that an episode's searches earned."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.records import Question, Searched, title_key
from searchgym.text import WORD, base_title, holds, norm

RULES: Final = ("query", "page", "led", "few")
"""Conditions that a search may have to meet to earn a waypoint; see `coverage`."""


@dataclass(frozen=True, slots=True)
class PathEntity:
    """Entity with a gold page on the path from a question to its answer."""

    name: str
    """Name of the entity in the question's evidence."""
    pages: frozenset[str]
    """Titles of the entity's gold pages, normalised by `title_key`."""


def waypoints_of(question: Question) -> tuple[PathEntity, ...]:
    """Returns the waypoints of a question in reading order.

    Waypoints are the subjects and objects of its evidence that have a gold page, except the answers and entities named
    in the question. Single facts, comparisons of two named pages, and questions without evidence triples have none.
    """
    answers = {norm(gold) for gold in question.golds}
    pages: dict[str, set[str]] = {}
    for title in question.gold_titles or ():
        for name in {norm(title), norm(base_title(title))}:
            pages.setdefault(name, set()).add(title_key(title))
    entities = dict.fromkeys(name for fact in question.evidences or () for name in (fact.subject, fact.object))
    waypoints = {
        norm(name): PathEntity(name, frozenset(pages[norm(name)]))
        for name in entities
        if norm(name) in pages and norm(name) not in answers and not holds(question.text, name)
    }
    return tuple(waypoints.values())


class Names:
    """Names of a graph's entities, which can be counted in queries.

    Args:
        names: Names of entities; brackets at their ends are ignored.
        ordinary: Lower-case words that do not count as names, even if an entity has such a name ("her").
    """

    def __init__(self, names: Iterable[str], ordinary: Collection[str] = ()) -> None:
        self._ordinary = frozenset(ordinary)
        self._names = self._tidy(names)
        self._longest = _longest(self._names)

    @classmethod
    def of(cls, questions: Iterable[Question]) -> Names:
        """Collects the entities with gold pages in questions; lower-case words of the questions are no names."""
        names, ordinary = dict[str, None](), set[str]()
        for question in questions:
            names.update(dict.fromkeys(question.gold_titles or ()))
            ordinary |= {word for word in WORD.findall(question.text) if word.islower()}
        return cls(names, ordinary)

    def count(self, text: str, more: Iterable[str] = ()) -> int:
        """Counts the different entities named in a text, ignoring case; of nested names only the longest counts.

        Args:
            text: Text to search, such as a query.
            more: Further names of entities.
        """
        here = self._tidy(more)
        longest = max(self._longest, _longest(here))
        words, entities, position = norm(text).split(), set[str](), 0
        while position < len(words):
            sizes = range(min(longest, len(words) - position), 0, -1)
            spans = (" ".join(words[position : position + size]) for size in sizes)
            name = next((span for span in spans if span in self._names or span in here), None)
            if name is not None:
                entities.add(name)
            position += 1 if name is None else name.count(" ") + 1
        return len(entities)

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
        searches: Searches of the episode in order. Searches in one turn do not see each other's hits.
        names: Names of the graph's entities; titles of the episode's hits count as well.
        rules: Conditions for a waypoint, which one search must meet together; see
            `searchgym.train.credit.terms.waypoint`.
        most_names: Maximum number of entities named in a query, for the rule ``few``.
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
            hit_titles = {title_key(hit.passage.title) for hit in search.hits}
            earned |= {
                i
                for i, point in enumerate(points)
                if ("query" not in rules or holds(search.query, point.name))
                and ("page" not in rules or hit_titles & point.pages)
                and ("led" not in rules or i in led)
            }
        texts = [f"{hit.passage.title} {hit.passage.text}" for search in of_turn for hit in search.hits]
        led |= {i for i, point in enumerate(points) if any(holds(text, point.name) for text in texts)}
    return len(earned) / len(points)
