"""Draws drafts of questions from a source: chains, comparisons, bridge comparisons, clues, and veiled chains."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from searchgym.questions.graphs.facts import PageFact
from searchgym.questions.graphs.graph import MONTHS, Form
from searchgym.questions.graphs.packs import Bridge, Clues, Comparable
from searchgym.questions.source import FactBase
from searchgym.questions.spec import VEILED
from searchgym.records import Hop

MOST_CHAINS: Final = 200_000
"""Maximum number of chains of one length."""
T = TypeVar("T")
Path = tuple[PageFact, ...]
"""Chain of facts: the object of each is the subject of the next."""
Makers = dict[str, "Callable[[], Draft | None]"]
"""Functions by comparison operation; each draws a comparison, or returns None if the drawn pair is unsuitable."""
_YEAR: Final = re.compile(r"\b\d{4}\b")


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


def draw(source: FactBase, shape: str, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of one shape without repeats; comparisons continue as long as new pairs are found."""
    pack = source.pack
    if shape == "chain":
        yield from chains(source, hops, rng)
    elif shape == "comparison":
        yield from _take_turns([pairs_of(compare_by(source, name, rng).values()) for name in pack.relations])
    elif shape == "bridge-comparison":
        yield from _take_turns([pairs_of(compare_over(source, bridge, rng).values()) for bridge in pack.bridges])
    elif shape == "intersection":
        yield from intersections(source, [clues for clues in pack.clues if clues.ask], rng)
    elif shape == VEILED:
        yield from veiled(source, hops, rng)


# -- chains --------------------------------------------------------------------------------------------------------


def chains(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields chains of `hops` facts, in turn from each sequence of relations so that rare ones are not lost."""
    by_relations = chains_by_relations(source, hops, rng)
    for path in _take_turns([iter(by_relations[key]) for key in sorted(by_relations)]):
        yield chain_of(source, path)


def chains_by_relations(source: FactBase, hops: int, rng: random.Random) -> dict[tuple[str, ...], list[Path]]:
    """Returns the paths of `hops` facts by their relations, in random order."""
    by_relations: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in itertools.islice(_paths(source, hops, rng), MOST_CHAINS):
        by_relations[tuple(fact.relation for fact in path)].append(path)
    for group in by_relations.values():
        rng.shuffle(group)
    return dict(by_relations)


def _paths(source: FactBase, hops: int, rng: random.Random) -> Iterator[Path]:
    """Yields paths of facts over different pages, starting at every page that a question can name."""
    pack = source.pack
    never = {tuple(pair) for pair in pack.never}
    joined = {tuple(join.steps) for join in pack.joined}

    def walk(path: Path, page: int, seen: frozenset[int]) -> Iterator[Path]:
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


def chain_of(source: FactBase, path: Path) -> Draft:
    """Returns the draft of a path of facts."""
    pages = tuple(fact.subject for fact in path)
    relations = tuple(fact.relation for fact in path)
    form = {"op": "path", "start": source.passages[pages[0]].title, "steps": list(relations)}
    return Draft(
        "chain",
        _ask(source, source.mention(pages[0]), relations),
        source.object_text(path[-1]),
        pages,
        path,
        form,
        tuple(source.name(page) for page in pages[1:]),
        relations,
        _steps(source, [path]),
    )


def _ask(source: FactBase, subject: str, relations: Sequence[str]) -> str:
    """Returns the question for the end of a chain of relations. A pair with a joint wording counts as one step."""
    joined = {tuple(join.steps): join for join in reversed(source.pack.joined)}  # the first of a pair counts
    position = 0
    while True:
        join = joined.get(tuple(relations[position : position + 2]))
        step = source.pack.relations[relations[position]] if join is None else join
        position += 1 if join is None else 2
        if position == len(relations):
            return _worded(step.ask, s=subject)
        subject = step.noun.format(s=subject)


def _worded(wording: str, **names: str) -> str:
    """Returns a question with its names filled in; a name that ends in a question mark does not double it."""
    return wording.format(**names).replace("??", "?")


def _steps(source: FactBase, paths: Sequence[Path]) -> tuple[Hop, ...]:
    """Returns the decomposition of paths; ``#n`` is the placeholder for the answer of hop n."""
    hops: list[Hop] = []
    for path in paths:
        subject = source.mention(path[0].subject)
        for fact in path:
            ask = source.pack.relations[fact.relation].ask or f"What is the {fact.relation} of {{s}}?"
            hops.append(Hop(_worded(ask, s=subject), source.object_text(fact)))
            subject = f"#{len(hops)}"
    return tuple(hops)


# -- comparisons ---------------------------------------------------------------------------------------------------


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
        if kind_a != kind_b or a == b or any(_YEAR.search(source.passages[page].title) for page in pair):
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
            _worded(wording, a=a, b=b, kind=called[0] or ""),
            answer,
            pages,
            facts,
            {"op": op, "paths": [{"start": source.passages[page].title, "steps": steps} for page in pair]},
            tuple(source.name(fact.target) for path in paths for fact in path[:-1] if fact.target is not None),
            (op, *steps),
            _steps(source, paths),
            named=True,
        )


def _size(text: str) -> tuple[str, int] | None:
    """Returns (``date`` or ``year``, year) of a literal, or None if it is neither."""
    year = _YEAR.search(text)
    return None if year is None else ("year" if text == year[0] else "date", int(year[0]))


# -- two clues -----------------------------------------------------------------------------------------------------


def intersections(source: FactBase, pairs: Iterable[Clues], rng: random.Random) -> Iterator[Draft]:
    """Yields questions for the one page that fits two clues; each clue alone fits several pages."""
    fitting = Counter((fact.relation, source.node(fact)) for fact in source.facts.facts)  # pages, allowed or not
    for clues in pairs:
        one, other = clues.steps
        pages = sorted(
            page for page, facts in source.of_page.items() if {one, other} <= facts.keys() and source.nameable(page)
        )
        rng.shuffle(pages)
        for page in pages:
            facts = tuple(source.of_page[page][step] for step in clues.steps)
            if any(fitting[fact.relation, source.node(fact)] < 2 for fact in facts):
                continue
            values = [_value(source, fact) for fact in facts]
            text = _worded(clues.ask, a=values[0], b=values[1], kind=source.facts.called[page] or "")
            paths = [{"start": source.node(fact), "steps": [f"~{fact.relation}"]} for fact in facts]
            form = {"op": "both", "paths": paths}
            relations = ("both", one, other)
            yield Draft("intersection", text, source.name(page), (page,), facts, form, (), relations)


# -- veiled chains -------------------------------------------------------------------------------------------------


def veiled(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields chains of `hops` facts whose first page is described by two clues instead of named.

    Only that page fits both clues, and neither is a fact along the chain. Of a date only the year is given.

    Source: OpenSeeker, arXiv 2603.15594, which makes names vague by a language model; its code of this step is not
    public. Here a description is made of facts, exact, and unique in the corpus.
    """
    described = _descriptions(source)
    by_relations = chains_by_relations(source, hops, rng)
    for path in _take_turns([iter(by_relations[key]) for key in sorted(by_relations)]):
        page, along = path[0].subject, {fact.relation for fact in path}
        for text, facts in described.get(page, ()):
            if along.isdisjoint(fact.relation for fact in facts):
                yield _veiled(source, path, text, facts)


def _descriptions(source: FactBase) -> dict[int, list[tuple[str, tuple[PageFact, ...]]]]:
    """Returns descriptions of pages, each with the two facts that it states; only one page fits each of them."""
    fitting: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # pages, allowed or not, by a clue
    for fact in source.facts.facts:
        fitting[fact.relation, _clue(source, fact)].add(fact.subject)
    described: defaultdict[int, list[tuple[str, tuple[PageFact, ...]]]] = defaultdict(list)
    for clues in (clues for clues in source.pack.clues if clues.noun):
        for page, by_relation in source.of_page.items():
            if not set(clues.steps) <= by_relation.keys() or not source.nameable(page):
                continue
            one, other = facts = tuple(by_relation[step] for step in clues.steps)
            values = [_clue(source, fact) for fact in facts]
            if not set(MONTHS).isdisjoint(values):  # "born in November": no place
                continue
            if fitting[one.relation, values[0]] & fitting[other.relation, values[1]] == {page}:
                text = clues.noun.format(a=values[0], b=values[1], kind=source.facts.called[page] or "")
                described[page].append((text, facts))
    return described


def _clue(source: FactBase, fact: PageFact) -> str:
    """Returns the object of a fact as a description gives it: the year of a date."""
    year = _YEAR.search(fact.text)
    if source.pack.relations[fact.relation].object == "date" and year is not None:
        return year[0]
    return _value(source, fact)


def _veiled(source: FactBase, path: Path, text: str, facts: tuple[PageFact, ...]) -> Draft:
    """Returns the draft of a path of facts whose first page is described by two facts."""
    pages, relations = tuple(fact.subject for fact in path), tuple(fact.relation for fact in path)
    names = tuple(source.name(page) for page in pages)
    first, *later = _steps(source, [path])
    mention = source.mention(pages[0])
    hops = (Hop(f"Who or what is {text}?", names[0]), Hop(first.question.replace(mention, "#1"), first.answer))
    return Draft(
        VEILED,
        _ask(source, text, relations),
        source.object_text(path[-1]),
        pages,
        (*facts, *path),
        {"op": VEILED, "start": source.passages[pages[0]].title, "steps": list(relations)},
        names,
        (*(fact.relation for fact in facts), *relations),
        (*hops, *(Hop(_next(hop.question), hop.answer) for hop in later)),
        queries=(text.removeprefix("the "), *names[1:]),
    )


def _next(question: str) -> str:
    """Returns the question of a hop with a hop before it: ``#1`` becomes ``#2``."""
    return re.sub(r"#(\d+)", lambda match: f"#{int(match[1]) + 1}", question)


def _value(source: FactBase, fact: PageFact) -> str:
    """Returns the object of a fact as questions mention it."""
    return source.object_text(fact) if fact.target is None else source.mention(fact.target)


def _take_turns(streams: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yields one item of each stream in turn until all have ended."""
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                yield next(stream)
            except StopIteration:
                left.remove(stream)
