"""The knowledge graph of a world: entities, facts, and the one evaluator that says what a question's answer is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Form = Mapping[str, Any]
"""A question's logical form, plain data:

``{"op": "path", "start": TITLE, "steps": [RELATION, ...]}``  the objects at the end; ``~RELATION`` goes backwards
``{"op": "least" | "greatest", "paths": [path, path]}``       the start whose value is least or greatest
``{"op": "same", "paths": [path, path]}``                     yes if both end at the same object, else no
"""

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


class Fact(NamedTuple):
    """One edge: an object is an entity's title or a literal's text."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Entity:
    """A node."""

    title: str
    """Unique; the title of its page."""
    name: str
    """What it is called; namesakes share it."""
    kind: str
    gender: str = "it"
    """``"she"``, ``"he"`` or ``"it"``: the pronoun."""
    note: str = ""
    """Profession or genre (`full` only): stands in the brackets of a namesake's title."""
    aliases: tuple[str, ...] = ()
    shared: bool = False
    """True if another entity has the same name."""

    @property
    def mention(self) -> str:
        """How other pages and questions name it without doubt: ``"the painter Orla Venn"`` for a namesake."""
        return f"the {self.note} {self.name}" if self.shared else self.name


@dataclass
class Graph:
    """Entities and facts, with both directions indexed in order of insertion."""

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Subject to relation to objects."""
    back: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Object to relation to subjects."""
    key: str = ""
    """Tells the world from others: seeds what namesakes have alike."""

    def add_entity(self, entity: Entity) -> Entity:
        """Adds a node without facts."""
        self.entities[entity.title] = entity
        self.facts[entity.title] = {}
        return entity

    def add(self, subject: str, relation: str, value: str) -> None:
        """Adds a fact."""
        self.facts[subject].setdefault(relation, []).append(value)
        self.back.setdefault(value, {}).setdefault(relation, []).append(subject)

    def one(self, subject: str, relation: str) -> str | None:
        """Returns the only object of a fact, None if there is none or more than one."""
        objects = self.facts.get(subject, {}).get(relation, ())
        return objects[0] if len(objects) == 1 else None

    def of_kind(self, kind: str) -> list[Entity]:
        """Returns the entities of a kind in order of insertion."""
        return [entity for entity in self.entities.values() if entity.kind == kind]

    def triples(self) -> Iterable[Fact]:
        """Yields every fact."""
        for subject, relations in self.facts.items():
            for relation, objects in relations.items():
                for value in objects:
                    yield Fact(subject, relation, value)

    def display(self, value: str) -> str:
        """Returns what a reader is shown for an object: an entity's name, a literal's text."""
        return self.entities[value].name if value in self.entities else value

    def without(self, page: str) -> Graph:
        """Returns the graph that remains when a page, and with it every fact it states, is gone."""
        rest = Graph(entities=self.entities, facts={title: {} for title in self.entities}, key=self.key)
        for fact in self.triples():
            if fact.subject != page:
                rest.add(*fact)
        return rest


def magnitude(literal: str) -> int:
    """Returns a literal's place in the order of its kind: a number itself, a year or date as YYYYMMDD."""
    words = literal.split()
    if len(words) == 3 and words[1] in MONTHS:
        return int(words[2]) * 10_000 + (MONTHS.index(words[1]) + 1) * 100 + int(words[0])
    return int(words[0])


def follow(graph: Graph, start: str, steps: Sequence[str]) -> list[str]:
    """Returns everything that a path leads to: sorted, without repeats."""
    found = {start}
    for step in steps:
        edges = graph.back if step.startswith("~") else graph.facts
        found = set(itertools.chain.from_iterable(edges.get(node, {}).get(step.lstrip("~"), ()) for node in found))
    return sorted(found)


def evaluate(graph: Graph, form: Form) -> list[str]:
    """Returns every answer that the whole graph supports: a question is good if there is exactly one.

    Args:
        graph: The facts.
        form: See `Form`.

    Returns:
        Titles, literals, or ``"yes"``/``"no"``, sorted; empty if the facts do not settle it.
    """
    if form["op"] == "path":
        return follow(graph, form["start"], form["steps"])
    ends = [follow(graph, path["start"], path["steps"]) for path in form["paths"]]
    if any(len(end) != 1 for end in ends):
        return []
    values = [end[0] for end in ends]
    if form["op"] == "same":
        return ["yes" if len(set(values)) == 1 else "no"]
    sizes = [magnitude(value) for value in values]
    wanted = min(sizes) if form["op"] == "least" else max(sizes)
    return sorted(path["start"] for path, size in zip(form["paths"], sizes, strict=True) if size == wanted)


def starts(form: Form) -> list[str]:
    """Returns the entities that a question names."""
    return [form["start"]] if form["op"] == "path" else [path["start"] for path in form["paths"]]
