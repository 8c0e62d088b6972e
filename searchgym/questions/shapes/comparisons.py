"""Comparisons of two pages, by a fact of each or by a fact of a related entity."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from searchgym.questions.graphs.packs import Bridge, Comparable
from searchgym.questions.shapes.draft import YEAR, Draft, Path, steps_of, worded
from searchgym.questions.source import FactBase

Makers = dict[str, Callable[[], Draft | None]]
"""Functions by comparison operation; each draws a comparison, or returns None if the drawn pair is unsuitable."""


def compare_by(source: FactBase, name: str, rng: random.Random) -> Makers:
    """Returns samplers of comparisons of two pages by one relation, by operation."""
    paths = {page: (facts[name],) for page, facts in source.of_page.items() if name in facts and source.nameable(page)}
    return _Comparisons(source, paths, source.pack.relations[name], "comparison", rng).makers()


def compare_over(source: FactBase, bridge: Bridge, rng: random.Random) -> Makers:
    """Returns samplers of comparisons of two pages by a property of a related entity, by operation."""
    paths: dict[int, Path] = {}
    for page, facts in source.of_page.items():
        role = facts.get(bridge.role)
        if role is None or role.target is None or not source.nameable(page) or role.target == page:
            continue
        value = source.of_page.get(role.target, {}).get(bridge.value)
        if value is not None:
            paths[page] = (role, value)
    return _Comparisons(source, paths, bridge, "bridge-comparison", rng).makers()


def pairs_of(makers: Iterable[Callable[[], Draft | None]]) -> Iterator[Draft]:
    """Yields comparisons of new pairs, from each sampler in turn, until 200 draws in a row yield no new pair."""
    turns, seen, idle = list(makers), set(), 0
    while turns and idle < 200:
        for make in turns:
            draft = make()
            key = None if draft is None else (draft.text, frozenset(draft.pages))
            if draft is None or key in seen:
                idle += 1
            else:
                seen.add(key)
                idle = 0
                yield draft


class _Comparisons:
    """Draws comparisons of two pages by the ends of their paths.

    Args:
        source: Corpus and facts to ask about.
        paths: Paths by the page at which they start.
        wordings: Question templates by operation.
        shape: Shape of the questions.
        rng: Random generator that draws the pairs.
    """

    def __init__(
        self, source: FactBase, paths: Mapping[int, Path], wordings: Comparable, shape: str, rng: random.Random
    ) -> None:
        self._source, self._paths, self._wordings, self._shape, self._rng = source, paths, wordings, shape, rng
        self._sized = sorted(page for page, path in paths.items() if _size(path[-1].text) is not None)
        self._by_value: defaultdict[str, list[int]] = defaultdict(list)
        for page in sorted(paths):
            self._by_value[paths[page][-1].text].append(page)
        self._several = [value for value, pages in sorted(self._by_value.items()) if len(pages) > 1]

    def makers(self) -> Makers:
        """Returns samplers of comparison pairs by operation, in the order least, greatest, same."""
        makers: Makers = {}
        if self._wordings.least and len(self._sized) > 1:
            makers["least"] = lambda: self._by_size("least")
        if self._wordings.greatest and len(self._sized) > 1:
            makers["greatest"] = lambda: self._by_size("greatest")
        if self._wordings.same and len(self._by_value) > 1:
            makers["same"] = self._same
        return makers

    def _by_size(self, op: Literal["least", "greatest"]) -> Draft | None:
        """Returns a comparison of two pages by dates in different years; None if the drawn pair is unsuitable."""
        source, pair = self._source, self._rng.sample(self._sized, 2)
        (kind_a, a), (kind_b, b) = (_size(self._paths[page][-1].text) or ("", 0) for page in pair)
        if kind_a != kind_b or a == b or any(YEAR.search(source.passages[page].title) for page in pair):
            return None
        return self._draft(pair, op, source.name(pair[0] if (a < b) == (op == "least") else pair[1]))

    def _same(self) -> Draft | None:
        """Returns a question on whether two pages have the same value; yes and no are equally likely."""
        rng, by_value = self._rng, self._by_value
        if rng.random() < 0.5:
            return (
                self._draft(rng.sample(by_value[rng.choice(self._several)], 2), "same", "yes")
                if self._several
                else None
            )
        values = rng.sample(sorted(by_value), 2)
        one, other = (set(re.split(r"[-–/]\s*", value)) for value in values)
        if one & other or any(one & set(group) and other & set(group) for group in self._source.pack.apart):
            return None  # they share a part, or the pack treats them as overlapping
        return self._draft([rng.choice(by_value[value]) for value in values], "same", "no")

    def _draft(self, pair: Sequence[int], op: Literal["least", "greatest", "same"], answer: str) -> Draft | None:
        """Returns the draft of a comparison; None if names or pages are the same, or kinds differ."""
        source, wording, paths = self._source, getattr(self._wordings, op), [self._paths[page] for page in pair]
        called = [source.facts.called[page] for page in pair]
        names = [source.name(page) for page in pair]
        facts = tuple(fact for path in paths for fact in path)
        pages = tuple(fact.subject for fact in facts)
        if names[0] == names[1] or len(set(pages)) < len(pages) or ("{kind}" in wording and called[0] != called[1]):
            return None
        a, b = names if "{kind}" in wording else (source.mention(page) for page in pair)
        steps = [fact.relation for fact in paths[0]]
        return Draft(
            self._shape,
            worded(wording, a=a, b=b, kind=called[0] or ""),
            answer,
            pages,
            facts,
            {"op": op, "paths": [{"start": source.passages[page].title, "steps": steps} for page in pair]},
            tuple(source.name(fact.target) for path in paths for fact in path[:-1] if fact.target is not None),
            (op, *steps),
            steps_of(source, paths),
            named=True,
        )


def _size(text: str) -> tuple[str, int] | None:
    """Returns (``date`` or ``year``, year) of a literal, or None if it is neither."""
    year = YEAR.search(text)
    return None if year is None else ("year" if text == year[0] else "date", int(year[0]))
