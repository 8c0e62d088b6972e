"""Draws questions as paths and comparisons over a graph, and keeps those with exactly one answer."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.errors import WorldTooSmallError
from searchgym.questions.graphs.graph import Fact, Form, Graph, evaluate, starts
from searchgym.questions.worlds.schema import (
    ALIAS,
    COMPARED,
    HELD_OUT,
    INFERENCES,
    KIN,
    LITERALS,
    MEMBER,
    NAMED,
    RELATIONS,
    ROLES,
    SHARED,
    SPLITS,
    WorldSpec,
)

_TRIES: Final = 400
"""Number of draws for one question after which the world is reported as too small."""
_ANSWER_SHARE: Final = 0.02
"""Maximum share of the questions with the same answer (but at least one question)."""
_MAJORITY_SHARE: Final = 0.015
"""Maximum share of the questions whose answer is the most frequent object of their last relation."""
_BACKWARDS: Final = 0.2
"""Share of the chains of two or more hops in `full` that begin at a player of a band."""


@dataclass(frozen=True, slots=True)
class WorldDraft:
    """A question without its wording."""

    shape: str
    """Shape of the question, such as ``"comparison"``; see `schema.MIX`."""
    hops: int
    """Number of pages that must be read."""
    form: Form
    """Logical form of the question."""
    facts: tuple[Fact, ...]
    """Gold facts in reading order."""
    answer: str
    """Answer: a title, a literal, ``"yes"`` or ``"no"``."""

    @property
    def named(self) -> bool:
        """Whether the question names its answer or is a yes/no question."""
        return self.shape in NAMED


class Drafter:
    """Random generator of a world's questions without repeats.

    Args:
        graph: Graph of the world.
        spec: Specification of the world.
        rng: Random generator of the world.
    """

    def __init__(self, graph: Graph, spec: WorldSpec, rng: random.Random) -> None:
        self._graph, self._spec, self._rng = graph, spec, rng
        self._titles = list(graph.entities)
        self._people = [entity.title for entity in graph.of_kind("person")]
        self._seen: set[tuple[object, ...]] = set()
        self._answers: Counter[str] = Counter()
        self._sides: Counter[tuple[str, str]] = Counter()
        self._most = max(1, int(_ANSWER_SHARE * spec.size))
        self._majority = majority(graph)
        self._easy_left = int(_MAJORITY_SHARE * spec.size)
        pairs: list[tuple[str, ...]] = [(relation,) for relation in SHARED]
        pairs += [(role, "birthplace") for role in ROLES]
        self._groups = {steps: self._subjects(steps) for steps in pairs}

    def draw(self, shape: str, hops: int, accept: Callable[[WorldDraft], bool]) -> WorldDraft:
        """Draws a new question with a given shape and number of hops.

        Args:
            shape: Shape of the question, one of those in the world's mix.
            hops: Number of pages that must be read.
            accept: Function that returns whether a draft is acceptable; if not, another one is drawn.

        Raises:
            WorldTooSmallError: No further question of this shape was found.
        """
        for _ in range(_TRIES):
            if shape == "inference":  # a relation that follows from two stated ones
                start, steps = self._rng.choice(self._people), self._rng.choice(list(INFERENCES.values()))
                form: Form | None = {"op": "path", "start": start, "steps": list(steps)}
            else:
                form = self._chain(hops) if shape not in NAMED else self._comparison(shape == "bridge-comparison")
            draft = self._checked(form, shape, hops) if form is not None else None
            if draft is not None and accept(draft):
                self._seen.add(self._key(draft.form))
                if draft.named:
                    self._sides[shape, _sides(draft)[0]] += 1
                else:
                    self._answers[self._graph.display(draft.answer)] += 1
                self._easy_left -= self._is_easy(draft)
                return draft
        strata = f" in the strata {', '.join(self._spec.strata)}" if self._spec.strata else ""
        raise WorldTooSmallError(
            f"a world of {self._spec.size} questions and {len(self._titles)} pages is too small: it has no further "
            f"{shape} question of {hops} hops{strata}; ask for other hops, another size or other strata"
        )

    def _checked(self, form: Form, shape: str, hops: int) -> WorldDraft | None:
        """Returns the draft of a form; None if it repeats, lacks exactly one answer, or reveals the answer."""
        if self._key(form) in self._seen:
            return None
        answers = evaluate(self._graph, form)
        facts = tuple(facts_along(self._graph, form))
        pages = {fact.subject for fact in facts}
        if len(answers) != 1 or len(pages) != hops:
            return None
        draft = WorldDraft(shape, hops, form, facts, answers[0])
        if draft.named:
            side, other = _sides(draft)
            return draft if self._sides[shape, side] <= self._sides[shape, other] else None
        answer = self._graph.display(answers[0])
        passed = {self._graph.display(title) for title in pages | set(starts(form))}
        if answer in passed or self._answers[answer] >= self._most:
            return None
        return None if self._is_easy(draft) and self._easy_left <= 0 else draft

    def _is_easy(self, draft: WorldDraft) -> bool:
        """Returns whether the answer is the most frequent object of the question's last relation."""
        if draft.named:
            return False
        return self._graph.display(draft.answer) == self._majority[draft.form["steps"][-1]]

    @staticmethod
    def _key(form: Form) -> tuple[object, ...]:
        """Returns a key that is equal for equal questions, whatever the order of the compared entities."""
        paths = [form] if form["op"] == "path" else form["paths"]
        return (tuple(sorted(path["start"] for path in paths)), tuple(paths[0]["steps"]))

    # -- shapes ----------------------------------------------------------------------------------------------------

    def _chain(self, hops: int) -> Form | None:
        """Draws a chain over different pages; in `full` it may begin with a backward step, from a player to a band."""
        rng, node = self._rng, self._rng.choice(self._titles)
        start, steps, seen = node, [], {node}
        if hops > 1 and self._spec.level == "full" and rng.random() < _BACKWARDS:
            bands = self._graph.subjects(node, MEMBER)
            if len(bands) != 1:
                return None
            steps, node = [f"~{MEMBER}"], bands[0]
        total = hops + len(steps)  # the step back reads no page
        while len(steps) < total:
            choices = [r for r in self._graph.facts[node] if fits(r, steps, len(steps) + 1 == total)]
            if not choices:
                return None
            relation = rng.choice(choices)
            node = self._graph.facts[node][relation][0]
            if node in seen:
                return None
            seen.add(node)
            steps.append(relation)
        if SPLITS[self._spec.split].held_out and not any(step in HELD_OUT for step in steps):
            return None
        return {"op": "path", "start": start, "steps": steps}

    def _comparison(self, bridge: bool) -> Form | None:
        """Draws two entities of a kind, compared by a value or by whether they have the same object.

        A bridge compares the births or birthplaces of the makers of two works. None if no pair exists, or the two are
        namesakes.
        """
        rng = self._rng
        role = [rng.choice(ROLES)] if bridge else []
        if rng.random() < 0.5:
            steps = [*role, "born"] if bridge else [rng.choice(COMPARED)]
            pool = [entity.title for entity in self._graph.of_kind(RELATIONS[steps[0]].subject)]
            op, pair = rng.choice(("least", "greatest")), rng.sample(pool, 2)
        else:
            steps = [*role, "birthplace"] if bridge else [rng.choice(SHARED)]
            op, pair = "same", same_pair(self._groups[tuple(steps)], rng) or []
        if len({self._graph.display(title) for title in pair}) < 2:
            return None
        return {"op": op, "paths": [{"start": title, "steps": list(steps)} for title in pair]}

    def _subjects(self, steps: Sequence[str]) -> list[list[str]]:
        """Returns the titles from which one or two relations lead to the same object, group by group."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for title in self._titles:
            for value in self._graph.objects(title, steps[0]):
                groups[value].append(title)
        for step in steps[1:]:
            before, groups = groups, defaultdict(list)
            for value, titles in before.items():
                for end in self._graph.objects(value, step):
                    groups[end].extend(titles)
        return list(groups.values())


def fits(relation: str, steps: Sequence[str], last: bool) -> bool:
    """Returns whether a relation may come next; relations with many objects and kin of kin (inference) may not."""
    if relation in (MEMBER, ALIAS) or (relation in KIN and steps and steps[-1] in KIN):
        return False
    return last or RELATIONS[relation].object not in LITERALS


def same_pair(groups: Sequence[Sequence[str]], rng: random.Random) -> list[str] | None:
    """Draws two subjects with the same object (one group) or different objects, equally likely; None if impossible."""
    if rng.random() < 0.5:
        larger = [group for group in groups if len(group) > 1]
        return rng.sample(rng.choice(larger), 2) if larger else None
    if len(groups) < 2:
        return None
    return [rng.choice(group) for group in rng.sample(groups, 2)]


def facts_along(graph: Graph, form: Form) -> Iterator[Fact]:
    """Yields the facts along the paths of a form; stops at a step without exactly one object."""
    for path in [form] if form["op"] == "path" else form["paths"]:
        node = path["start"]
        for step in path["steps"]:
            backwards, relation = step.startswith("~"), step.lstrip("~")
            ends = graph.subjects(node, relation) if backwards else graph.objects(node, relation)
            if len(ends) != 1:
                return
            yield Fact(ends[0], relation, node) if backwards else Fact(node, relation, ends[0])
            node = ends[0]


def _sides(draft: WorldDraft) -> tuple[str, str]:
    """Returns the side of a comparison's answer (yes or no, first or second) and the other side, for balancing them."""
    if draft.form["op"] == "same":
        return ("yes", "no") if draft.answer == "yes" else ("no", "yes")
    first = draft.answer == draft.form["paths"][0]["start"]
    return ("first", "second") if first else ("second", "first")


def majority(graph: Graph) -> dict[str, str]:
    """Returns the most frequent object of each relation in a graph, in readable form."""
    objects: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for fact in graph.triples():
        objects[fact.relation][graph.display(fact.object)] += 1
    return {relation: counts.most_common(1)[0][0] for relation, counts in objects.items()}


def pages_of(draft: WorldDraft) -> list[str]:
    """Returns the titles of a draft's gold pages in reading order, without repeats."""
    return list(dict.fromkeys(fact.subject for fact in draft.facts))
