"""Wording of facts and questions: phrases for each relation, and questions composed along a path."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from searchgym.options.yaml import read_yaml
from searchgym.questions.graphs.graph import Fact, Form, Graph
from searchgym.questions.worlds.schema import INFERENCES, RELATIONS
from searchgym.records import Hop

Pair = Sequence[Sequence[str]]
"""Two halves of a set of templates: one for training, and one never seen in training."""
AGES: Final = {"least": "older", "greatest": "younger"}
"""Words for comparing dates of birth: the person with the smaller date is older."""


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


@dataclass(frozen=True, kw_only=True)
class Language:
    """Templates of a level, read from its YAML file."""

    phrases: Mapping[str, Phrases]
    """Templates of pages and questions, by relation."""
    bridge: Pair
    """Questions that ask which ``{kind}``, ``{a}`` or ``{b}``, has the ``{age}`` (older or younger) ``{role}``."""
    bridge_same: Pair
    """Questions that ask whether the ``{role}`` of ``{a}`` and that of ``{b}`` were born in the same place."""
    roles: Mapping[str, Sequence[str]]
    """Words for the person in a role, by relation: the first for training templates, the second for held-out ones."""
    kinds: Mapping[str, Sequence[str]]
    """Nouns for each kind of entity: the first for training templates, the second for held-out ones."""
    inferences: Mapping[str, Sequence[str]]
    """Noun phrases for each inferred relation: the first for training templates, the second for held-out ones."""
    intro: Pair
    """First sentences of pages, which state the ``{kind}`` of ``{s}``."""
    frames: Pair = ()
    """Level `full`: sentences into which a clause ``{c}`` is inserted, for more varied phrasing."""
    alias: Pair = ()
    """Level `full`: clauses for another name of the entity."""
    mention_person: Pair = ()
    """Level `full`: clauses that mention something on the page of a person."""
    mention_thing: Pair = ()
    """Level `full`: clauses that mention something on any other page."""


@functools.cache
def language_of(level: str) -> Language:
    """Returns the templates of a level, ``simple`` or ``full``."""
    data = read_yaml(Path(__file__).with_name(f"{level}.yaml"))
    phrases = {relation: Phrases(**templates) for relation, templates in data.pop("phrases").items()}
    return Language(phrases=phrases, **data)


def sentence(text: str) -> str:
    """Returns a text with its first letter capitalised."""
    return text[:1].upper() + text[1:]


class Asker:
    """Converts logical forms into the text of questions.

    Args:
        language: Language of the world's level.
        half: Half of the templates: 0 for training, 1 for the others.
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

    def _path(self, form: Form, kind: str) -> str:
        """Returns the text of a question about a path, composed from its start to its end."""
        phrases, steps = self._language.phrases, list(form["steps"])
        subject = self._graph.mention(form["start"])
        if kind == "inference":
            role = next(name for name, path in INFERENCES.items() if list(path) == steps)
            return f"Who is the {self._language.inferences[role][self._half]} of {subject}?"
        for step in steps[:-1]:
            subject = self._pick(phrases[step].noun).format(s=subject)
        return self._pick(phrases[steps[-1]].ask).format(s=subject)

    def _pair(self, form: Form) -> str:
        """Returns the text of a question that compares two entities, or their makers."""
        language, steps = self._language, form["paths"][0]["steps"]
        a, b = (self._graph.mention(path["start"]) for path in form["paths"])
        if len(steps) == 1:
            return self._pick(getattr(language.phrases[steps[0]], form["op"])).format(a=a, b=b)
        role = language.roles[steps[0]][self._half]
        if form["op"] == "same":
            return self._pick(language.bridge_same).format(role=role, a=a, b=b)
        kind = language.kinds[RELATIONS[steps[0]].subject][self._half]
        return self._pick(language.bridge).format(age=AGES[form["op"]], role=role, kind=kind, a=a, b=b)

    def _hops(self, paths: Sequence[Form], facts: Sequence[Fact]) -> tuple[Hop, ...]:
        """Returns the single-hop questions of a decomposition, in which ``#n`` is the answer of hop n."""
        hops: list[Hop] = []
        left = iter(facts)
        for path in paths:
            subject = self._graph.mention(path["start"])
            for step in path["steps"]:
                backwards, fact = step.startswith("~"), next(left)
                text = sentence(self._pick(self._language.phrases[step].ask).format(s=subject))
                hops.append(Hop(text, self._graph.display(fact.subject if backwards else fact.object)))
                subject = f"#{len(hops)}"
        return tuple(hops)
