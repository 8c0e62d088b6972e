"""The wording of facts and questions: phrases of a relation, pages, and questions composed along a path."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.questions.graphs.graph import Entity, Fact, Form, Graph
from searchgym.questions.worlds.schema import INFERENCES, RELATIONS
from searchgym.records import Hop

Pair = tuple[tuple[str, ...], tuple[str, ...]]
"""Two halves of templates: those for training, and those that training never sees."""


class Phrases(NamedTuple):
    """Templates for one relation, in which ``{s}`` is the subject and ``{o}`` the object."""

    state: Pair
    """Clauses that state the relation on a page."""
    ask: Pair
    """Questions that ask for the object of the relation."""
    noun: Pair = ((), ())
    """Noun phrases for an object that is an entity, such as ``the mother of {s}``."""
    least: Pair = ((), ())
    """Questions that ask which of ``{a}`` and ``{b}`` has the smaller value."""
    greatest: Pair = ((), ())
    """Questions that ask which of ``{a}`` and ``{b}`` has the larger value."""
    same: Pair = ((), ())
    """Questions that ask whether ``{a}`` and ``{b}`` have the same object."""


class Page(NamedTuple):
    """A page as a list of sentences."""

    sentences: tuple[str, ...]
    """Sentences with the spaces between them, so that their concatenation is the text."""
    where: Mapping[str, tuple[int, ...]]
    """Indices of the sentences that state each relation."""


@dataclass(frozen=True)
class Language(ABC):
    """Base class of a level's language: its templates, and how it writes pages."""

    phrases: Mapping[str, Phrases]
    """Templates of pages and questions, by relation."""
    bridge: Pair
    """Questions that ask which ``{kind}``, ``{a}`` or ``{b}``, has the ``{age}`` (older or younger) ``{role}``."""
    bridge_same: Pair
    """Questions that ask whether the ``{role}`` of ``{a}`` and that of ``{b}`` were born in the same place."""
    roles: Mapping[str, tuple[str, str]]
    """Words for the person in a role, by relation, one for training templates and one for held-out ones."""
    kinds: Mapping[str, tuple[str, str]]
    """Words for a kind of entity, by kind, one for training templates and one for held-out ones."""
    inferences: Mapping[str, tuple[str, str]]
    """Noun phrases of inferred relations, by relation, one for training templates and one for held-out ones."""

    @abstractmethod
    def page(self, graph: Graph, entity: Entity, half: int, rng: random.Random) -> Page:
        """Returns the page of an entity.

        Args:
            graph: Graph of the world.
            entity: Entity that the page is about.
            half: Half of the templates: 0 for those of training, 1 for the others.
            rng: Random generator of the world.
        """


def sentence(text: str) -> str:
    """Returns a text with a capital as its first letter."""
    return text[:1].upper() + text[1:]


AGES: Final = {"least": "older", "greatest": "younger"}
"""Words for comparing dates of birth: the smaller date is that of the older person."""


class Asker:
    """Writer of questions, which turns logical forms into text.

    Args:
        language: Language of the world's level.
        half: Half of the templates: 0 for those of training, 1 for the others.
        graph: Graph of the world.
        rng: Random generator of the world.
    """

    def __init__(self, language: Language, half: int, graph: Graph, rng: random.Random) -> None:
        self._language, self._half, self._graph, self._rng = language, half, graph, rng

    def ask(self, form: Form, kind: str, facts: Sequence[Fact]) -> tuple[str, tuple[Hop, ...]]:
        """Returns the text of a question and its decomposition, one hop per fact.

        Args:
            form: Logical form of the question.
            kind: Shape of the question.
            facts: Gold facts in reading order.
        """
        if form["op"] == "path":
            return sentence(self._path(form, kind)), self._hops([form], facts)
        return sentence(self._pair(form)), self._hops(form["paths"], facts)

    def _pick(self, pair: Pair) -> str:
        return self._rng.choice(pair[self._half])

    def _mention(self, title: str) -> str:
        return self._graph.entities[title].mention

    def _path(self, form: Form, kind: str) -> str:
        """Returns the text of a question about a path, composed from its start to its end."""
        phrases, steps = self._language.phrases, list(form["steps"])
        subject = self._mention(form["start"])
        if kind == "inference":
            role = next(name for name, path in INFERENCES.items() if list(path) == steps)
            return f"Who is the {self._language.inferences[role][self._half]} of {subject}?"
        for step in steps[:-1]:
            subject = self._pick(phrases[step].noun).format(s=subject)
        return self._pick(phrases[steps[-1]].ask).format(s=subject)

    def _pair(self, form: Form) -> str:
        """Returns the text of a question that compares two entities, or their makers."""
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
        """Returns the single-hop questions of a decomposition, in which ``#n`` is the answer of hop n."""
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
