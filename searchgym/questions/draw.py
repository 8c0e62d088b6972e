"""Draws drafts of questions from a source: chains, comparisons, comparisons over a bridge, and pairs of clues."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.questions.graphs.facts import Found
from searchgym.questions.graphs.graph import Form
from searchgym.questions.graphs.packs import Bridge, Clues, Joined
from searchgym.questions.source import Source
from searchgym.records import Hop

MOST_CHAINS: Final = 200_000
"""Number of chains of one length after which no more are looked for."""
Makers = dict[str, "Callable[[], Draft | None]"]
"""Functions that draw a comparison or nothing, by the operation of its form."""
_YEAR: Final = re.compile(r"\b\d{4}\b")


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before the filters."""

    shape: str
    """``chain``, ``comparison``, ``bridge-comparison``, ``intersection``, ``cloze`` or ``cloze-chain``."""
    text: str
    """The question."""
    answer: str
    """Its answer."""
    pages: tuple[int, ...]
    """Numbers of its gold pages in reading order."""
    facts: tuple[Found, ...] = ()
    """Facts along its path."""
    form: Form | None = None
    """Logical form on the source's graph; None for a cloze."""
    waypoints: tuple[str, ...] = ()
    """Names that must be found on the way and are not the answer."""
    relations: tuple[str, ...] = ()
    """Relations of its path."""
    steps: tuple[Hop, ...] = ()
    """Its decomposition into questions of one hop."""
    names: tuple[str, ...] = ()
    """Other names of the answer, for a cloze."""
    named: bool = False
    """Whether the question names its answer or asks for yes or no."""

    @property
    def hops(self) -> int:
        """Number of pages that must be read."""
        return len(self.pages)


def draw(source: Source, shape: str, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of one shape, none twice; comparisons go on for as long as new pairs are found."""
    if shape == "chain":
        yield from chains(source, hops, rng)
    elif shape == "comparison":
        yield from _take_turns([_comparisons(source, name, rng) for name in source.pack.relations])
    elif shape == "bridge-comparison":
        yield from _take_turns([_bridges(source, bridge, rng) for bridge in source.pack.bridges])
    elif shape == "intersection":
        yield from intersections(source, source.pack.clues, rng)


# -- chains --------------------------------------------------------------------------------------------------------


def chains(source: Source, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields the chains of a length, in turn from each sequence of relations so that rare ones are not lost."""
    by_relations = chains_by_relations(source, hops, rng)
    for path in _take_turns([iter(by_relations[key]) for key in sorted(by_relations)]):
        yield chain_of(source, path)


def chains_by_relations(
    source: Source, hops: int, rng: random.Random
) -> dict[tuple[str, ...], list[tuple[Found, ...]]]:
    """Returns the paths of a length by their relations, in random order."""
    by_relations: defaultdict[tuple[str, ...], list[tuple[Found, ...]]] = defaultdict(list)
    for path in itertools.islice(_paths(source, hops, rng), MOST_CHAINS):
        by_relations[tuple(fact.relation for fact in path)].append(path)
    for group in by_relations.values():
        rng.shuffle(group)
    return dict(by_relations)


def _paths(source: Source, hops: int, rng: random.Random) -> Iterator[tuple[Found, ...]]:
    """Yields paths of facts over different pages, from every page that a question can name."""
    pack = source.pack
    never = {tuple(pair) for pair in pack.never}
    joined = {tuple(join.steps) for join in pack.joined}

    def walk(path: tuple[Found, ...], page: int, seen: frozenset[int]) -> Iterator[tuple[Found, ...]]:
        last = len(path) + 1 == hops
        for name, fact in source.of_page[page].items() if page in source.of_page else ():
            pair = (path[-1].relation, name) if path else None
            relation = pack.relations[name]
            if pair in never:
                continue
            if last and (relation.ask or pair in joined) and (hops == 1 or relation.last):
                yield (*path, fact)
            elif not last and relation.noun and fact.target is not None and fact.target not in seen:
                yield from walk((*path, fact), fact.target, seen | {fact.target})

    pages = sorted(page for page in source.of_page if source.nameable(page))
    rng.shuffle(pages)
    for page in pages:
        yield from walk((), page, frozenset([page]))


def chain_of(source: Source, path: Sequence[Found]) -> Draft:
    """Returns the draft of a path of facts."""
    pages = tuple(fact.subject for fact in path)
    relations = tuple(fact.relation for fact in path)
    form = {"op": "path", "start": source.passages[pages[0]].title, "steps": list(relations)}
    return Draft(
        "chain",
        _ask(source, source.mention(pages[0]), relations),
        source.shown(path[-1]),
        pages,
        tuple(path),
        form,
        tuple(source.name(page) for page in pages[1:]),
        relations,
        _steps(source, [path]),
    )


def _ask(source: Source, subject: str, relations: Sequence[str]) -> str:
    """Returns the question for the end of a chain of relations."""
    pack, place = source.pack, 0
    while place < len(relations):
        join = _join(pack.joined, relations[place : place + 2])
        width = 1 if join is None else 2
        said = pack.relations[relations[place]] if join is None else join
        if place + width == len(relations):
            return _worded(said.ask, s=subject)
        subject = said.noun.format(s=subject)
        place += width
    raise AssertionError("a chain has a relation")


def _worded(wording: str, **names: str) -> str:
    """Returns a question with its names filled in, of which the last may end with a question mark of its own."""
    return wording.format(**names).replace("??", "?")


def _join(joined: Iterable[Joined], pair: Sequence[str]) -> Joined | None:
    return next((join for join in joined if list(pair) == join.steps), None)


def _steps(source: Source, paths: Sequence[Sequence[Found]]) -> tuple[Hop, ...]:
    """Returns the decomposition of paths; ``#n`` stands for the answer of hop n."""
    hops: list[Hop] = []
    for path in paths:
        subject = source.mention(path[0].subject)
        for fact in path:
            ask = source.pack.relations[fact.relation].ask or f"What is the {fact.relation} of {{s}}?"
            hops.append(Hop(_worded(ask, s=subject), source.shown(fact)))
            subject = f"#{len(hops)}"
    return tuple(hops)


# -- comparisons ---------------------------------------------------------------------------------------------------


def _comparisons(source: Source, name: str, rng: random.Random) -> Iterator[Draft]:
    """Yields comparisons of two pages by a relation."""
    yield from pairs_of(compare_by(source, name, rng).values())


def _bridges(source: Source, bridge: Bridge, rng: random.Random) -> Iterator[Draft]:
    """Yields comparisons of two pages by a property of what a role leads to."""
    yield from pairs_of(compare_over(source, bridge, rng).values())


def compare_by(source: Source, name: str, rng: random.Random) -> Makers:
    """Returns what draws comparisons of two pages by a relation."""
    paths = {page: (facts[name],) for page, facts in source.of_page.items() if name in facts and source.nameable(page)}
    return _makers(source, paths, source.pack.relations[name], "comparison", rng)


def compare_over(source: Source, bridge: Bridge, rng: random.Random) -> Makers:
    """Returns what draws comparisons of two pages by a property of what a role leads to."""
    paths = {}
    for page, facts in source.of_page.items():
        role = facts.get(bridge.role)
        if role is None or role.target is None or not source.nameable(page) or role.target == page:
            continue
        value = source.of_page.get(role.target, {}).get(bridge.value)
        if value is not None:
            paths[page] = (role, value)
    return _makers(source, paths, bridge, "bridge-comparison", rng)


def _makers(
    source: Source, paths: Mapping[int, tuple[Found, ...]], wording: Any, shape: str, rng: random.Random
) -> Makers:
    """Returns a function for each operation that draws a pair, in the order least, greatest, same."""
    makers: Makers = {}
    sized = sorted(page for page, path in paths.items() if _size(path[-1].text) is not None)
    by_value: defaultdict[str, list[int]] = defaultdict(list)
    for page in sorted(paths):
        by_value[paths[page][-1].text].append(page)
    for op in ("least", "greatest"):
        if getattr(wording, op) and len(sized) > 1:
            makers[op] = _sizer(source, paths, sized, op, getattr(wording, op), shape, rng)
    if wording.same and len(by_value) > 1:
        several = [value for value, pages in sorted(by_value.items()) if len(pages) > 1]
        makers["same"] = lambda: _same(source, paths, by_value, several, wording.same, shape, rng)
    return makers


def pairs_of(makers: Iterable[Callable[[], Draft | None]]) -> Iterator[Draft]:
    """Yields comparisons of new pairs, from each maker in turn, until 200 draws gave nothing new."""
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


def _sizer(
    source: Source,
    paths: Mapping[int, tuple[Found, ...]],
    pages: Sequence[int],
    op: str,
    wording: str,
    shape: str,
    rng: random.Random,
) -> Callable[[], Draft | None]:
    """Returns a function that draws two pages and compares them by size."""
    return lambda: _sized(source, paths, rng.sample(pages, 2), op, wording, shape)


def _size(text: str) -> tuple[str, int] | None:
    """Returns (``date`` or ``year``, year) of a literal, None if it is neither."""
    year = _YEAR.search(text)
    if year is None:
        return None
    return ("year" if text == year[0] else "date"), int(year[0])


def _sized(
    source: Source, paths: Mapping[int, tuple[Found, ...]], pair: Sequence[int], op: str, wording: str, shape: str
) -> Draft | None:
    """Returns the comparison of two pages by dates in different years; None if the pair does not allow one."""
    (kind_a, a), (kind_b, b) = (_size(paths[page][-1].text) or ("", 0) for page in pair)
    if kind_a != kind_b or a == b or any(_YEAR.search(source.passages[page].title) for page in pair):
        return None
    first = (a < b) == (op == "least")
    return _compared(source, paths, pair, op, wording, shape, source.name(pair[0] if first else pair[1]))


def _same(
    source: Source,
    paths: Mapping[int, tuple[Found, ...]],
    by_value: Mapping[str, list[int]],
    several: Sequence[str],
    wording: str,
    shape: str,
    rng: random.Random,
) -> Draft | None:
    """Returns the question whether two pages have the same value: yes and no with even chances."""
    if rng.random() < 0.5:
        if not several:
            return None
        return _compared(source, paths, rng.sample(by_value[rng.choice(several)], 2), "same", wording, shape, "yes")
    one, other = rng.sample(sorted(by_value), 2)
    if _overlap(source.pack.apart, one, other):
        return None
    return _compared(
        source, paths, [rng.choice(by_value[one]), rng.choice(by_value[other])], "same", wording, shape, "no"
    )


def _overlap(apart: Sequence[Sequence[str]], one: str, other: str) -> bool:
    """Returns whether two values share a part, or parts that a pack says are not told apart."""
    a, b = set(re.split(r"[-–/]\s*", one)), set(re.split(r"[-–/]\s*", other))
    return bool(a & b) or any(a & set(group) and b & set(group) for group in apart)


def _compared(
    source: Source,
    paths: Mapping[int, tuple[Found, ...]],
    pair: Sequence[int],
    op: str,
    wording: str,
    shape: str,
    answer: str,
) -> Draft | None:
    """Returns the draft of a comparison; None if both have one name, one page, or different words for their kinds."""
    called = [source.facts.called[page] for page in pair]
    names = [source.name(page) for page in pair]
    read = tuple(fact.subject for page in pair for fact in paths[page])
    if names[0] == names[1] or len(set(read)) < len(read) or ("{kind}" in wording and called[0] != called[1]):
        return None
    shown = names if "{kind}" in wording else [source.mention(page) for page in pair]
    text = _worded(wording, a=shown[0], b=shown[1], kind=called[0] or "")
    steps = [fact.relation for fact in paths[pair[0]]]
    form = {"op": op, "paths": [{"start": source.passages[page].title, "steps": steps} for page in pair]}
    return Draft(
        shape,
        text,
        answer,
        read,
        tuple(fact for page in pair for fact in paths[page]),
        form,
        tuple(source.name(fact.target) for page in pair for fact in paths[page][:-1] if fact.target is not None),
        (op, *steps),
        _steps(source, [paths[page] for page in pair]),
        named=True,
    )


# -- two clues -----------------------------------------------------------------------------------------------------


def intersections(source: Source, pairs: Iterable[Clues], rng: random.Random) -> Iterator[Draft]:
    """Yields questions for the one page that two clues fit, each of which fits several."""
    for clues in pairs:
        one, other = clues.steps
        fits = {step: _subjects(source, step) for step in clues.steps}
        pages = sorted(
            page for page, facts in source.of_page.items() if {one, other} <= facts.keys() and source.nameable(page)
        )
        rng.shuffle(pages)
        for page in pages:
            facts = tuple(source.of_page[page][step] for step in clues.steps)
            if any(len(fits[fact.relation][source.node(fact)]) < 2 for fact in facts):
                continue
            shown = [source.shown(fact) if fact.target is None else source.mention(fact.target) for fact in facts]
            text = _worded(clues.ask, a=shown[0], b=shown[1], kind=source.facts.called[page] or "")
            paths = [{"start": source.node(fact), "steps": [f"~{fact.relation}"]} for fact in facts]
            form = {"op": "both", "paths": paths}
            relations = ("both", one, other)
            yield Draft("intersection", text, source.name(page), (page,), facts, form, (), relations)


def _subjects(source: Source, relation: str) -> defaultdict[str, list[int]]:
    """Returns the pages that have each object of a relation, of all pages whether allowed or not."""
    subjects: defaultdict[str, list[int]] = defaultdict(list)
    for fact in source.facts.found:
        if fact.relation == relation:
            subjects[source.node(fact)].append(fact.subject)
    return subjects


def _take_turns(streams: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Yields one item of each stream in turn until all have ended."""
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                yield next(stream)
            except StopIteration:
                left.remove(stream)
