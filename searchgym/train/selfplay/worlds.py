"""Walks over the graph of a generated world, and the questions that they become."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from searchgym.questions.draw import MOST_CHAINS
from searchgym.questions.graphs.graph import Form, evaluate, starts
from searchgym.questions.worlds.build import other_names, world_graph
from searchgym.questions.worlds.language import Asker, language_of
from searchgym.questions.worlds.questions import facts_along, fits, same_pair
from searchgym.questions.worlds.schema import (
    COMPARED,
    HELD_OUT,
    INFERENCES,
    MEMBER,
    RELATIONS,
    ROLES,
    SHARED,
    SPLITS,
    WorldSpec,
)
from searchgym.records import Question, SupportingFact, Triple
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.proposal import Proposal

_IDLE: Final = 400
"""Pairs in a row that give nothing new after which a comparison has no more."""


class WorldGround:
    """A world's graph, walked for questions as `searchgym.questions.worlds.questions` draws them.

    Args:
        spec: Specification of the world.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks and of wordings.
        findable: Titles that find their own page; a question needs no other. Default: all.
    """

    def __init__(
        self, spec: WorldSpec, hops: Collection[int], seed: int, findable: frozenset[str] | None = None
    ) -> None:
        self.graph, self._spec, self._seed, self._findable = world_graph(spec), spec, seed, findable
        self._titles = list(self.graph.entities)
        self._chains: defaultdict[Arm, list[tuple[str, ...]]] = defaultdict(list)
        for number in sorted(set(hops) & {1, 2, 3, 4}):
            self._find_chains(number)
        if 2 in hops and not SPLITS[spec.split].held_out:
            self._find_inferences()
        pairs = [] if SPLITS[spec.split].held_out else [arm for arm in _pair_arms() if arm.hops in hops]
        self.arms: Sequence[Arm] = (*sorted(self._chains), *(arm for arm in pairs if self._has_pair(arm)))

    # -- walks -----------------------------------------------------------------------------------------------------

    def walks(self, arm: Arm) -> Iterator[Form]:
        """Yields the logical forms of an arm in a random order that depends on the seed alone."""
        rng = random.Random(f"walks {self._seed} {arm}")
        if not arm.named:
            chains = list(self._chains[arm])
            rng.shuffle(chains)
            for start, *steps in chains:
                yield {"op": "path", "start": start, "steps": steps}
            return
        steps = [arm.first] if arm.hops == 2 else [arm.first, arm.last]
        groups, seen, idle = self._groups(arm), set[frozenset[str]](), 0
        while idle < _IDLE:
            pair = same_pair(groups, rng) if arm.op == "same" else rng.sample(groups[0], 2)
            if pair is None or frozenset(pair) in seen:
                idle += 1
                continue
            seen.add(frozenset(pair))
            idle = 0
            yield {"op": arm.op, "paths": [{"start": title, "steps": list(steps)} for title in pair]}

    def _find_chains(self, hops: int) -> None:
        """Finds the chains of a length from every entity."""
        titles = list(self._titles)
        random.Random(f"starts {self._seed} {hops}").shuffle(titles)
        shape = "single" if hops == 1 else "compositional"
        for path in itertools.islice(self._paths(titles, hops), MOST_CHAINS):
            if not SPLITS[self._spec.split].held_out or HELD_OUT.intersection(path[1:]):
                self._chains[Arm(shape, hops, "path", path[1], path[-1])].append(path)

    def _paths(self, titles: Sequence[str], hops: int) -> Iterator[tuple[str, ...]]:
        """Yields chains as (start, relation, ...) over different pages; a first step may lead from player to band."""
        facts = self.graph.facts

        def walk(steps: tuple[str, ...], node: str, seen: frozenset[str], left: int) -> Iterator[tuple[str, ...]]:
            for relation, objects in facts[node].items():
                if len(objects) != 1 or objects[0] in seen or not fits(relation, steps, left == 1):
                    continue
                if left == 1:
                    yield (*steps, relation)
                else:
                    yield from walk((*steps, relation), objects[0], seen | {objects[0]}, left - 1)

        for title in titles:
            for steps in walk((), title, frozenset([title]), hops):
                yield (title, *steps)
            bands = self.graph.back.get(title, {}).get(MEMBER, ()) if hops > 1 else ()
            if len(bands) == 1:
                for steps in walk((f"~{MEMBER}",), bands[0], frozenset([title, bands[0]]), hops):
                    yield (title, *steps)

    def _find_inferences(self) -> None:
        """Finds the people with relatives of relatives."""
        for person in (entity.title for entity in self.graph.of_kind("person")):
            for steps in INFERENCES.values():
                if len(self.graph.objects(person, steps[0])) == 1:
                    middle = self.graph.objects(person, steps[0])[0]
                    if len(self.graph.objects(middle, steps[1])) == 1:
                        self._chains[Arm("inference", 2, "path", *steps)].append((person, *steps))

    def _groups(self, arm: Arm) -> list[list[str]]:
        """Returns the entities that an arm compares, in groups of equal ends; all in one where values are compared."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for entity in self.graph.of_kind(RELATIONS[arm.first].subject):
            end = self.graph.one(entity.title, arm.first)
            if arm.hops == 4 and end is not None:
                end = self.graph.one(end, arm.last)
            if end is not None:
                groups[end if arm.op == "same" else ""].append(entity.title)
        return list(groups.values())

    def _has_pair(self, arm: Arm) -> bool:
        groups = self._groups(arm)
        return len(groups) > 1 if arm.op == "same" else bool(groups) and len(groups[0]) > 1

    # -- questions -------------------------------------------------------------------------------------------------

    def proposal(self, arm: Arm, walk: Form, number: int) -> Proposal | str:
        """Returns the proposal of a form, or why it is none."""
        graph = self.graph
        facts = tuple(facts_along(graph, walk))
        pages = list(dict.fromkeys(fact.subject for fact in facts))
        if len(answers := evaluate(graph, walk)) != 1:
            return "not one answer"
        if len(pages) != arm.hops or len({graph.display(title) for title in starts(walk)}) < len(starts(walk)):
            return "names or pages are not different"
        passed = {graph.display(title) for title in (*pages, *starts(walk))}
        if not arm.named and graph.display(answers[0]) in passed:
            return "answer is on the path"
        if self._findable is not None and not self._findable.issuperset(pages):
            return "names do not find its pages"
        rng = random.Random(f"words {self._seed} {arm} {number}")
        asker = Asker(language_of(self._spec.level), SPLITS[self._spec.split].templates, graph, rng)
        text, hops = asker.ask(walk, arm.shape, facts)
        entity = graph.entities.get(answers[0])
        question = Question(
            f"{arm.name}-{number}",
            text,
            (graph.display(answers[0]),),
            () if entity is None else other_names(entity),
            arm.shape,
            f"{arm.hops}-hop",
            tuple(SupportingFact(title) for title in pages),
            tuple(Triple(*map(graph.display, fact)) for fact in facts),
            hops=hops,
            metadata={"hops": arm.hops, "form": walk, "arm": list(arm)},
        )
        between = dict.fromkeys(graph.display(title) for title in pages if title not in starts(walk))
        return Proposal(question, walk, tuple(between), arm)


def _pair_arms() -> Iterator[Arm]:
    """Yields the kinds of comparisons that worlds have."""
    for relation in COMPARED:
        yield from (Arm("comparison", 2, op, relation, relation) for op in ("least", "greatest"))
    yield from (Arm("comparison", 2, "same", relation, relation) for relation in SHARED)
    for role in ROLES:
        yield from (Arm("bridge-comparison", 4, op, role, "born") for op in ("least", "greatest"))
        yield Arm("bridge-comparison", 4, "same", role, "birthplace")
