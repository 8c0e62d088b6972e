"""Drawing questions: paths and comparisons over a graph, each kept only if the evaluator finds exactly one answer."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from searchgym.cards import WorldSpec
from searchgym.corpora.worlds.graph import Fact, Form, Graph, evaluate, starts
from searchgym.corpora.worlds.schema import (
    ALIAS,
    COMPARED,
    HELD_OUT,
    INFERENCES,
    KIN,
    LITERALS,
    MEMBER,
    RELATIONS,
    ROLES,
    SHARED,
    SPLITS,
)
from searchgym.errors import UsageError

_TRIES: Final = 400
"""Draws per question before a world is called too small."""
_ANSWER_SHARE: Final = 0.02
"""No answer is that of more than this share of the questions (at least one may have it)."""
_MAJORITY_SHARE: Final = 0.015
"""At most this share of the questions is answered by the most frequent object of the relation asked for."""
_BACKWARDS: Final = 0.2
"""Share of the chains of two and more hops of `full` that begin at a player of a band."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is put into words."""

    shape: str
    hops: int
    form: Form
    facts: tuple[Fact, ...]
    """Gold facts in reading order."""
    answer: str
    """Title, literal, ``"yes"`` or ``"no"``."""

    @property
    def named(self) -> bool:
        """True if the answer stands in the question or is yes or no."""
        return self.shape in ("comparison", "bridge-comparison")


class Drafter:
    """Draws questions of a world, none twice.

    Args:
        graph: The world.
        spec: Its spec.
        rng: Its generator.
    """

    def __init__(self, graph: Graph, spec: WorldSpec, rng: random.Random) -> None:
        self._graph, self._spec, self._rng = graph, spec, rng
        self._held_out = SPLITS[spec.split].held_out
        self._titles = list(graph.entities)
        self._people = [entity.title for entity in graph.of_kind("person")]
        self._seen: set[tuple[object, ...]] = set()
        self._answers: Counter[str] = Counter()
        self._sides: Counter[tuple[str, str]] = Counter()
        self._most = max(1, int(_ANSWER_SHARE * spec.size))
        self._majority = majority(graph)
        self._easy_left = int(_MAJORITY_SHARE * spec.size)
        self._groups = {relation: self._by_object(relation) for relation in SHARED}
        self._born_in = {relation: self._by_birthplace(relation) for relation in ROLES}

    def draw(self, shape: str, hops: int, accept: Callable[[Draft], bool]) -> Draft:
        """Returns a new question of a shape.

        Args:
            shape: One of the shapes of the mix.
            hops: Pages to be read.
            accept: A further condition.

        Raises:
            UsageError: The world has no further one.
        """
        draw = {"inference": self._inference, "comparison": self._comparison, "bridge-comparison": self._bridge}
        for _ in range(_TRIES):
            form = draw[shape]() if shape in draw else self._chain(hops)
            draft = self._checked(form, shape, hops) if form is not None else None
            if draft is not None and accept(draft):
                self._seen.add(self._key(form))
                if draft.named:
                    self._sides[shape, _sides(draft)[0]] += 1
                else:
                    self._answers[self._graph.display(draft.answer)] += 1
                self._easy_left -= self._is_easy(draft)
                return draft
        strata = f" in the strata {', '.join(self._spec.strata)}" if self._spec.strata else ""
        raise UsageError(
            f"a world of {self._spec.size} questions and {len(self._titles)} pages is too small: it has no further "
            f"{shape} question of {hops} hops{strata}; ask for other hops, another size or other strata"
        )

    def _checked(self, form: Form, shape: str, hops: int) -> Draft | None:
        """Returns the draft of a form that is new, has one answer, and does not give it away."""
        if self._key(form) in self._seen:
            return None
        answers = evaluate(self._graph, form)
        facts = tuple(self._facts(form))
        pages = {fact.subject for fact in facts}
        if len(answers) != 1 or len(pages) != hops:
            return None
        draft = Draft(shape, hops, form, facts, answers[0])
        if draft.named:
            side, other = _sides(draft)
            return draft if self._sides[shape, side] <= self._sides[shape, other] else None
        shown = self._graph.display(answers[0])
        passed = {self._graph.display(title) for title in pages | set(starts(form))}
        if shown in passed or self._answers[shown] >= self._most:
            return None
        return None if self._is_easy(draft) and self._easy_left <= 0 else draft

    def _is_easy(self, draft: Draft) -> bool:
        """True if the most frequent object of the relation asked for is the answer."""
        if draft.named:
            return False
        return self._graph.display(draft.answer) == self._majority[draft.form["steps"][-1]]

    @staticmethod
    def _key(form: Form | None) -> tuple[object, ...]:
        """Returns what two equal questions share, whatever the order of what they compare."""
        paths = [] if form is None else [form] if form["op"] == "path" else form["paths"]
        return (tuple(sorted(path["start"] for path in paths)), tuple(paths[0]["steps"]))

    def _facts(self, form: Form) -> Iterator[Fact]:
        """Yields the facts along the paths of a form, whose every step has one object."""
        for path in [form] if form["op"] == "path" else form["paths"]:
            node = path["start"]
            for step in path["steps"]:
                relation = step.lstrip("~")
                edges = self._graph.back if step.startswith("~") else self._graph.facts
                found = edges.get(node, {}).get(relation, ())
                if len(found) != 1:
                    return
                yield Fact(found[0], relation, node) if step.startswith("~") else Fact(node, relation, found[0])
                node = found[0]

    # -- shapes ----------------------------------------------------------------------------------------------------

    def _chain(self, hops: int) -> Form | None:
        """Draws a walk over different pages; in `full` it may begin backwards, from a player to the band."""
        rng, node = self._rng, self._rng.choice(self._titles)
        start, steps, seen = node, [], {node}
        if hops > 1 and self._spec.level == "full" and rng.random() < _BACKWARDS:
            bands = self._graph.back.get(node, {}).get(MEMBER, ())
            if len(bands) != 1:
                return None
            steps, node = [f"~{MEMBER}"], bands[0]
        while len(steps) < hops + bool(steps and steps[0].startswith("~")):
            last = len(steps) + 1 == hops + bool(steps and steps[0].startswith("~"))
            choices = [r for r in self._graph.facts[node] if self._fits(r, steps, last)]
            if not choices:
                return None
            relation = rng.choice(choices)
            node = self._graph.facts[node][relation][0]
            if node in seen:
                return None
            seen.add(node)
            steps.append(relation)
        if self._held_out and not any(step in HELD_OUT for step in steps):
            return None
        return {"op": "path", "start": start, "steps": steps}

    @staticmethod
    def _fits(relation: str, steps: list[str], last: bool) -> bool:
        """True if a relation may come next: lists are not asked for, kin of kin is left to inference."""
        if relation in (MEMBER, ALIAS) or (relation in KIN and steps and steps[-1] in KIN):
            return False
        return last or RELATIONS[relation].object not in LITERALS

    def _inference(self) -> Form | None:
        """Draws a relation that follows from two."""
        start, steps = self._rng.choice(self._people), self._rng.choice(list(INFERENCES.values()))
        return {"op": "path", "start": start, "steps": list(steps)}

    def _comparison(self) -> Form | None:
        """Draws two entities of a kind to be compared by a value, or by having the same object."""
        rng = self._rng
        if rng.random() < 0.5:
            relation = rng.choice(COMPARED)
            pool = [entity.title for entity in self._graph.of_kind(RELATIONS[relation].subject)]
            return self._two(rng.choice(("least", "greatest")), rng.sample(pool, 2), [relation])
        relation = rng.choice(SHARED)
        return self._two("same", self._same_pair(self._groups[relation]), [relation])

    def _bridge(self) -> Form | None:
        """Draws two works, to be compared by their makers' births or birthplaces."""
        rng, role = self._rng, self._rng.choice(ROLES)
        if rng.random() < 0.5:
            pool = [entity.title for entity in self._graph.of_kind(RELATIONS[role].subject)]
            return self._two(rng.choice(("least", "greatest")), rng.sample(pool, 2), [role, "born"])
        return self._two("same", self._same_pair(self._born_in[role]), [role, "birthplace"])

    def _same_pair(self, groups: Mapping[str, list[str]]) -> list[str] | None:
        """Draws two subjects that have the same object, or two that have not: even chances."""
        rng = self._rng
        if rng.random() < 0.5:
            larger = [group for group in groups.values() if len(group) > 1]
            return rng.sample(rng.choice(larger), 2) if larger else None
        if len(groups) < 2:
            return None
        return [rng.choice(group) for group in rng.sample(list(groups.values()), 2)]

    def _two(self, op: str, pair: list[str] | None, steps: list[str]) -> Form | None:
        """Returns the form of a comparison; namesakes are not compared."""
        names = {self._graph.display(title) for title in pair or ()}
        if pair is None or len(names) < 2:
            return None
        return {"op": op, "paths": [{"start": title, "steps": list(steps)} for title in pair]}

    def _by_object(self, relation: str) -> dict[str, list[str]]:
        """Returns the subjects of a relation by object."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for title in self._titles:
            for value in self._graph.facts[title].get(relation, ()):
                groups[value].append(title)
        return dict(groups)

    def _by_birthplace(self, role: str) -> dict[str, list[str]]:
        """Returns the subjects of a role by the birthplace of the person in it."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for person, subjects in self._by_object(role).items():
            for place in self._graph.facts[person].get("birthplace", ()):
                groups[place].extend(subjects)
        return dict(groups)


def _sides(draft: Draft) -> tuple[str, str]:
    """Returns on which side the answer of a comparison stands, and the other side: the two are kept in balance."""
    if draft.form["op"] == "same":
        return ("yes", "no") if draft.answer == "yes" else ("no", "yes")
    first = draft.answer == draft.form["paths"][0]["start"]
    return ("first", "second") if first else ("second", "first")


def majority(graph: Graph) -> dict[str, str]:
    """Returns the most frequent object of each relation, as a reader sees it."""
    objects: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for fact in graph.triples():
        objects[fact.relation][graph.display(fact.object)] += 1
    return {relation: counts.most_common(1)[0][0] for relation, counts in objects.items()}


def pages_of(draft: Draft) -> list[str]:
    """Returns the titles of the gold pages in reading order, without repeats."""
    return list(dict.fromkeys(fact.subject for fact in draft.facts))
