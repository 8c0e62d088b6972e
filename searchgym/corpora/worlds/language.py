"""How facts and questions are worded: phrases of a relation, pages, and questions composed along a path."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.corpora.worlds.graph import Entity, Fact, Form, Graph
from searchgym.corpora.worlds.schema import INFERENCES, RELATIONS
from searchgym.records import Hop

Pair = tuple[tuple[str, ...], tuple[str, ...]]
"""Templates for training, and templates that training never sees."""


class Phrases(NamedTuple):
    """The wordings of one relation; ``{s}`` is the subject, ``{o}`` the object."""

    state: Pair
    """Clauses for the page."""
    ask: Pair
    """The question for the object."""
    noun: Pair = ((), ())
    """An object that is an entity as a noun phrase: ``the mother of {s}``."""
    least: Pair = ((), ())
    """The question which of ``{a}`` and ``{b}`` has the smaller value."""
    greatest: Pair = ((), ())
    same: Pair = ((), ())
    """The question whether ``{a}`` and ``{b}`` have the same object."""


class Page(NamedTuple):
    """A page in sentences."""

    sentences: tuple[str, ...]
    """Spaces kept: the text is their concatenation."""
    where: Mapping[str, tuple[int, ...]]
    """Relation to the numbers of the sentences that state it."""


@dataclass(frozen=True)
class Language(ABC):
    """The wordings of a level."""

    phrases: Mapping[str, Phrases]
    bridge: Pair
    """Question which of two things has the ``{age}`` ``{role}``; ``{kind}``, ``{a}``, ``{b}``."""
    bridge_same: Pair
    """Question whether the ``{role}`` of two things were born in the same place."""
    roles: Mapping[str, tuple[str, str]]
    """Maker's relation to the word for the maker, for each half."""
    kinds: Mapping[str, tuple[str, str]]
    """Kind to its word, for each half."""
    inferences: Mapping[str, tuple[str, str]]
    """Inferred relation to its noun phrase, for each half."""

    @abstractmethod
    def page(self, graph: Graph, entity: Entity, half: int, rng: random.Random) -> Page:
        """Returns the page of an entity."""


def sentence(text: str) -> str:
    """Returns a text that begins with a capital."""
    return text[:1].upper() + text[1:]


AGES: Final = {"least": "older", "greatest": "younger"}


class Asker:
    """Words questions.

    Args:
        language: The level's phrases.
        half: 0 for the templates of training, 1 for the others.
        graph: The world.
        rng: The world's generator.
    """

    def __init__(self, language: Language, half: int, graph: Graph, rng: random.Random) -> None:
        self._language, self._half, self._graph, self._rng = language, half, graph, rng

    def ask(self, form: Form, kind: str, facts: Sequence[Fact]) -> tuple[str, tuple[Hop, ...]]:
        """Returns the text of a question and its decomposition, one hop per fact.

        Args:
            form: The logical form.
            kind: The question's shape.
            facts: The gold facts in reading order.
        """
        if form["op"] == "path":
            return sentence(self._path(form, kind)), self._hops([form], facts)
        return sentence(self._pair(form)), self._hops(form["paths"], facts)

    def _pick(self, pair: Pair) -> str:
        return self._rng.choice(pair[self._half])

    def _mention(self, title: str) -> str:
        return self._graph.entities[title].mention

    def _path(self, form: Form, kind: str) -> str:
        """Words a chain from its start outwards."""
        phrases, steps = self._language.phrases, list(form["steps"])
        subject = self._mention(form["start"])
        if kind == "inference":
            role = next(name for name, path in INFERENCES.items() if list(path) == steps)
            return f"Who is the {self._language.inferences[role][self._half]} of {subject}?"
        for step in steps[:-1]:
            subject = self._pick(phrases[step].noun).format(s=subject)
        return self._pick(phrases[steps[-1]].ask).format(s=subject)

    def _pair(self, form: Form) -> str:
        """Words a comparison of two entities, or of their makers."""
        language, (first, second) = self._language, form["paths"]
        a, b = self._mention(first["start"]), self._mention(second["start"])
        relation, last = first["steps"][0], first["steps"][-1]
        if len(first["steps"]) == 1:
            return self._pick(getattr(language.phrases[last], form["op"])).format(a=a, b=b)
        role = language.roles[relation][self._half]
        if form["op"] == "same":
            return self._pick(language.bridge_same).format(role=role, a=a, b=b)
        kind = language.kinds[RELATIONS[relation].subject][self._half]
        return self._pick(language.bridge).format(age=AGES[form["op"]], role=role, kind=kind, a=a, b=b)

    def _hops(self, paths: Sequence[Form], facts: Sequence[Fact]) -> tuple[Hop, ...]:
        """Returns the single questions; ``#n`` stands for the answer of hop n."""
        hops: list[Hop] = []
        left = iter(facts)
        for path in paths:
            subject = self._mention(path["start"])
            for step in path["steps"]:
                backwards, fact = step.startswith("~"), next(left)
                text = sentence(self._pick(self._language.phrases[step].ask).format(s=subject))
                hops.append(Hop(text, self._graph.display(fact.subject if backwards else fact.object)))
                subject = f"#{len(hops)}"
        return tuple(hops)
