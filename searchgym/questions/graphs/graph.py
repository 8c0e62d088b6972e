"""Knowledge graphs of worlds and corpora: entities, facts, and the evaluator that determines a question's answer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

Form = Mapping[str, Any]
"""Logical form of a question, as plain data. There are five forms, shown here with their answers:

``{"op": "path", "start": TITLE, "steps": [RELATION, ...]}``  the objects at the end; ``~RELATION`` goes backwards
``{"op": "least" | "greatest", "paths": [path, path]}``       the start of the path with the smaller or larger value
``{"op": "same", "paths": [path, path]}``                     yes if both paths end at the same object, else no
``{"op": "both", "paths": [path, path]}``                     the common end of both paths, each of which has more
``{"op": "veiled", "start": TITLE, "steps": [RELATION, ...]}``  as ``path``; the question describes its start instead
"""

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


_ISO_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


class Edges(Protocol):
    """Any graph whose facts can be followed in both directions."""

    def objects(self, subject: str, relation: str) -> Sequence[str]:
        """Returns the objects of a subject's relation."""
        ...

    def subjects(self, value: str, relation: str) -> Sequence[str]:
        """Returns the subjects that have an object by a relation."""
        ...


class Fact(NamedTuple):
    """A fact, which is an edge of the graph."""

    subject: str
    """Title of the entity that the fact is about."""
    relation: str
    """Name of the relation."""
    object: str
    """Title of an entity, or text of a literal."""


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity, which is a node of the graph and has a page."""

    title: str
    """Title of the entity's page; unique in a world."""
    name: str
    """Name of the entity, shared by namesakes."""
    kind: str
    """Kind of entity, such as ``"person"``; see `schema.KINDS`."""
    gender: str = "it"
    """Pronoun for the entity: ``"she"``, ``"he"`` or ``"it"``."""
    note: str = ""
    """Profession or genre (`full` only), shown in brackets in the title of a namesake."""
    aliases: tuple[str, ...] = ()
    """Other names of the entity (`full` only)."""
    shared: bool = False
    """Whether another entity has the same name."""

    @property
    def mention(self) -> str:
        """Unambiguous name in other pages and in questions, such as ``"the painter Orla Venn"`` for a namesake."""
        return f"the {self.note} {self.name}" if self.shared else self.name


@dataclass
class Graph:
    """Knowledge graph of entities and facts, indexed in both directions and in order of insertion."""

    entities: dict[str, Entity] = field(default_factory=dict)
    """Entities of the graph, by title."""
    facts: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Objects of facts, by subject and then by relation."""
    back: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Subjects of facts, by object and then by relation."""
    key: str = ""
    """Random string that identifies the world; it also seeds the wording of pages of entities with equal names."""

    def add_entity(self, entity: Entity) -> Entity:
        """Adds an entity without facts and returns it."""
        self.entities[entity.title] = entity
        self.facts[entity.title] = {}
        return entity

    def add(self, subject: str, relation: str, value: str) -> None:
        """Adds a fact about an entity of the graph."""
        self.facts[subject].setdefault(relation, []).append(value)
        self.back.setdefault(value, {}).setdefault(relation, []).append(subject)

    def one(self, subject: str, relation: str) -> str | None:
        """Returns the only object of a subject's relation; None if there is none or more than one."""
        objects = self.facts.get(subject, {}).get(relation, ())
        return objects[0] if len(objects) == 1 else None

    def objects(self, subject: str, relation: str) -> Sequence[str]:
        """Returns the objects of a subject's relation."""
        return self.facts.get(subject, {}).get(relation, ())

    def subjects(self, value: str, relation: str) -> Sequence[str]:
        """Returns the subjects that have an object by a relation."""
        return self.back.get(value, {}).get(relation, ())

    def of_kind(self, kind: str) -> list[Entity]:
        """Returns the entities of a kind in order of insertion."""
        return [entity for entity in self.entities.values() if entity.kind == kind]

    def triples(self) -> Iterable[Fact]:
        """Yields all facts, by subject in order of insertion."""
        for subject, relations in self.facts.items():
            for relation, objects in relations.items():
                for value in objects:
                    yield Fact(subject, relation, value)

    def display(self, value: str) -> str:
        """Returns the readable form of an object: an entity's name, or a literal's text."""
        return self.entities[value].name if value in self.entities else value

    def mention(self, value: str) -> str:
        """Returns an object as written on pages and in questions: an entity's mention, or a literal's text."""
        return self.entities[value].mention if value in self.entities else value


def magnitude(literal: str) -> int:
    """Returns a number by which literals of one kind are ordered: the number or year itself, a date as YYYYMMDD.

    Raises:
        ValueError: The literal neither begins with a number nor is a date.
    """
    if _ISO_DATE.fullmatch(literal):
        return int(literal.replace("-", ""))
    words = literal.replace(",", " ").split()
    if len(words) == 3 and words[0] in MONTHS:
        words[:2] = words[1], words[0]  # May 17, 1956
    if len(words) == 3 and words[1] in MONTHS:
        return int(words[2]) * 10_000 + (MONTHS.index(words[1]) + 1) * 100 + int(words[0])
    return int(words[0])


def follow(graph: Edges, start: str, steps: Sequence[str]) -> list[str]:
    """Returns the entities and literals that a chain of relations reaches, sorted and without repeats.

    Args:
        graph: Graph to follow.
        start: Title of the first entity.
        steps: Relations to follow; ``~RELATION`` goes backwards.
    """
    nodes = {start}
    for step in steps:
        ends = graph.subjects if step.startswith("~") else graph.objects
        nodes = set(itertools.chain.from_iterable(ends(node, step.lstrip("~")) for node in nodes))
    return sorted(nodes)


def evaluate(graph: Edges, form: Form) -> list[str]:
    """Returns all answers to a question that the graph supports; a good question has exactly one.

    Args:
        graph: Graph with the facts.
        form: Logical form of the question; see `Form`.

    Returns:
        Titles, literals, or ``"yes"``/``"no"``, sorted; empty if the facts do not determine the answer.
    """
    if form["op"] in ("path", "veiled"):
        return follow(graph, form["start"], form["steps"])
    ends = [follow(graph, path["start"], path["steps"]) for path in form["paths"]]
    if form["op"] == "both":
        return sorted(set(ends[0]) & set(ends[1]))
    if any(len(end) != 1 for end in ends):
        return []
    values = [end[0] for end in ends]
    if form["op"] == "same":
        return ["yes" if len(set(values)) == 1 else "no"]
    sizes = [magnitude(value) for value in values]
    extreme = min(sizes) if form["op"] == "least" else max(sizes)
    return sorted(path["start"] for path, size in zip(form["paths"], sizes, strict=True) if size == extreme)


def starts(form: Form) -> list[str]:
    """Returns the titles of the entities that a question names, which are the starts of its paths."""
    return [form["start"]] if form["op"] == "path" else [path["start"] for path in form["paths"]]
