"""Chains: questions that follow facts from page to page."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from searchgym.questions.shapes.draft import Draft, Path, steps_of, take_turns, worded
from searchgym.questions.source import FactBase

MOST_CHAINS: Final = 200_000
"""Maximum number of chains of one length."""


def chains(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields chains of `hops` facts, in turn from each sequence of relations so that rare ones are not lost."""
    by_relations = chains_by_relations(source, hops, rng)
    for path in take_turns([iter(by_relations[key]) for key in sorted(by_relations)]):
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
        question_of(source, source.mention(pages[0]), relations),
        source.object_text(path[-1]),
        pages,
        path,
        form,
        tuple(source.name(page) for page in pages[1:]),
        relations,
        steps_of(source, [path]),
    )


def question_of(source: FactBase, subject: str, relations: Sequence[str]) -> str:
    """Returns the question for the end of a chain of relations. A pair with a joint wording counts as one step."""
    joined = {tuple(join.steps): join for join in reversed(source.pack.joined)}  # the first of a pair counts
    position = 0
    while True:
        join = joined.get(tuple(relations[position : position + 2]))
        step = source.pack.relations[relations[position]] if join is None else join
        position += 1 if join is None else 2
        if position == len(relations):
            return worded(step.ask, s=subject)
        subject = step.noun.format(s=subject)
