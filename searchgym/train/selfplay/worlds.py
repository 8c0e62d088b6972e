"""Walks over the graph of a generated world, and the questions made from walks."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

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
from searchgym.train.selfplay.ground import Chain, ChainGround, relations_from

_IDLE: Final = 400
"""Number of consecutive repeated pairs after which a comparison counts as used up."""
PAIRS: Final[Sequence[Arm]] = (
    *(Arm("comparison", 2, op, relation, relation) for relation in COMPARED for op in ("least", "greatest")),
    *(Arm("comparison", 2, "same", relation, relation) for relation in SHARED),
    *(
        Arm("bridge-comparison", 4, op, role, value)
        for role in ROLES
        for op, value in (("least", "born"), ("greatest", "born"), ("same", "birthplace"))
    ),
)
"""Kinds of comparisons that worlds have."""


class WorldGround(ChainGround):
    """A world's graph; its questions have the forms of `searchgym.questions.worlds.questions`.

    Args:
        spec: Specification of the world.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks and of wordings.
        findable: Titles that a search finds; questions use only these pages. Default: all.
    """

    def __init__(
        self, spec: WorldSpec, hops: Collection[int], seed: int, findable: frozenset[str] | None = None
    ) -> None:
        super().__init__(seed)
        self.graph, self._spec, self._findable = world_graph(spec), spec, findable
        held_out = SPLITS[spec.split].held_out
        for number in sorted(set(hops) & {1, 2, 3, 4}):
            self.find_chains(
                self.graph.entities,
                number,
                "single" if number == 1 else "compositional",
                partial(self._chains_from, hops=number),
                lambda chain: not held_out or bool(HELD_OUT.intersection(chain[1:])),
            )
        for person in self.graph.of_kind("person") if 2 in hops and not held_out else ():
            for steps in INFERENCES.values():  # relatives of relatives
                middle = self.graph.objects(person.title, steps[0])
                if len(middle) == 1 and len(self.graph.objects(middle[0], steps[1])) == 1:
                    self.chains[Arm("inference", 2, "path", *steps)].append((person.title, *steps))
        self.arms = tuple(sorted(self.chains))
        for arm in () if held_out else PAIRS:
            groups = self._groups(arm) if arm.hops in hops else []
            if len(groups) > 1 if arm.op == "same" else groups and len(groups[0]) > 1:
                self.arms = (*self.arms, arm)

    # -- walks -----------------------------------------------------------------------------------------------------

    def walks(self, arm: Arm) -> Iterator[Form]:
        """Yields the logical forms of an arm; see `Ground.walks`."""
        if not arm.named:
            yield from super().walks(arm)
            return
        rng = random.Random(f"walks {self.seed} {arm}")
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

    def _chains_from(self, title: str, hops: int) -> Iterator[Chain]:
        """Yields the relations of chains from an entity; the first step may lead from a player to the band."""
        graph = self.graph

        def facts(node: str) -> Iterator[tuple[str, str]]:
            return ((relation, objects[0]) for relation, objects in graph.facts[node].items() if len(objects) == 1)

        yield from relations_from(title, hops, facts, fits)
        bands = graph.back.get(title, {}).get(MEMBER, ()) if hops > 1 else ()
        if len(bands) == 1:
            yield from relations_from(bands[0], hops, facts, fits, (f"~{MEMBER}",), frozenset([title]))

    def _groups(self, arm: Arm) -> list[list[str]]:
        """Returns the entities that an arm compares: grouped by equal ends for ``same``, else in one group."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for entity in self.graph.of_kind(RELATIONS[arm.first].subject):
            end = self.graph.one(entity.title, arm.first)
            if arm.hops == 4 and end is not None:
                end = self.graph.one(end, arm.last)
            if end is not None:
                groups[end if arm.op == "same" else ""].append(entity.title)
        return list(groups.values())

    # -- questions -------------------------------------------------------------------------------------------------

    def question(self, arm: Arm, walk: Form, number: int) -> Question | str:
        """Returns the question of a form; see `Ground.question`."""
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
        rng = random.Random(f"words {self.seed} {arm} {number}")
        asker = Asker(language_of(self._spec.level), SPLITS[self._spec.split].templates, graph, rng)
        text, hops = asker.ask(walk, arm.shape, facts)
        entity = graph.entities.get(answers[0])
        return Question(
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
