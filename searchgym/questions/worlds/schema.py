"""The schema of worlds: kinds of entities, relations between them, splits, and the mix of questions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from searchgym.errors import UnknownNameError, UsageError
from searchgym.options import Options
from searchgym.records import Passage, Question, Triple

VERSION: Final = 1
"""Version of the generator, incremented whenever the same specification generates different bytes."""

LEVELS: Final = ("simple", "full")
"""Levels of a world's language, from easy to difficult."""


@dataclass(frozen=True, slots=True)
class WorldSpec(Options):
    """Parameters of a generated world: equal specs give the same pages and questions, byte for byte."""

    level: Literal["simple", "full"] = "simple"
    """``simple``: short templated pages. ``full``: varied language with ambiguity and distractors."""
    size: int = 500
    """Number of questions; the number of pages follows from it."""
    seed: int = 0
    split: Literal["train", "validation", "test", "transfer"] = "train"
    """Split of the world, which determines the names, templates and relations that it may use."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """Hop counts of the questions, which are the numbers of pages that they need."""
    strata: tuple[str, ...] = ()
    """Ranks of gold pages in a search for the question's text (``full`` only): a selection of ``1``, ``2-5``,
    ``6-20`` and ``reformulation`` (below rank 20). Empty: all of them."""


_QUESTION_ID: Final = re.compile(rf"(?:{'|'.join(LEVELS)})-[a-z]+-\d+-\d+")


def is_world_question(id: str) -> bool:
    """Returns whether an id is that of a world's question: ``LEVEL-SPLIT-SEED-NUMBER``, as `build_world` gives it."""
    return _QUESTION_ID.fullmatch(id) is not None


@dataclass(frozen=True, slots=True)
class World:
    """A generated world, with its pages, questions and facts."""

    spec: WorldSpec
    """Specification that the world was built from."""
    passages: tuple[Passage, ...]
    """Pages, one per entity."""
    questions: tuple[Question, ...]
    """Questions about the pages, each with exactly one answer."""
    triples: tuple[Triple, ...]
    """Facts stated on the pages."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation with one object per subject, stated only on the subject's page."""

    name: str
    """Name of the relation."""
    subject: str
    """Kind of the relation's subject."""
    object: str
    """Kind of the relation's object, or ``"date"`` or ``"number"``."""
    held_out: bool = False
    """Whether only worlds of the split ``transfer`` have the relation."""


RELATIONS: Final = {
    relation.name: relation
    for relation in (
        Relation("born", "person", "date"),
        Relation("birthplace", "person", "city"),
        Relation("mother", "person", "person"),
        Relation("father", "person", "person"),
        Relation("spouse", "person", "person"),
        Relation("employer", "person", "company"),
        Relation("teacher", "person", "person", held_out=True),
        Relation("river", "city", "river"),
        Relation("mayor", "city", "person"),
        Relation("chartered", "city", "date"),
        Relation("twin", "city", "city", held_out=True),
        Relation("length", "river", "number"),
        Relation("source", "river", "mountain"),
        Relation("height", "mountain", "number"),
        Relation("climber", "mountain", "person"),
        Relation("director", "film", "person"),
        Relation("premiered", "film", "date"),
        Relation("basis", "film", "book"),
        Relation("composer", "film", "person", held_out=True),
        Relation("author", "book", "person"),
        Relation("published", "book", "date"),
        Relation("publisher", "book", "company"),
        Relation("founder", "company", "person"),
        Relation("seat", "company", "city"),
        Relation("opened", "company", "date"),
        Relation("singer", "band", "person"),
        Relation("home", "band", "city"),
        Relation("formed", "band", "date"),
        Relation("label", "band", "company", held_out=True),
    )
}
"""All relations of worlds, by name."""
HELD_OUT: Final = frozenset(name for name, relation in RELATIONS.items() if relation.held_out)
"""Names of the relations that only the split ``transfer`` has."""
LITERALS: Final = frozenset({"date", "number"})
"""Kinds of literals, which are objects that are not entities."""
KIN: Final = frozenset({"mother", "father", "spouse"})
"""Names of the relations between relatives."""

MEMBER: Final = "member"
"""Relation from a band to its players (`full` only). Questions use it backwards, from a player to the band."""

ALIAS: Final = "alias"
"""Relation from an entity to one of its other names (`full` only). No question asks for it."""

KINDS: Final = {
    "person": 0.40,
    "city": 0.12,
    "film": 0.12,
    "book": 0.10,
    "company": 0.08,
    "band": 0.07,
    "river": 0.06,
    "mountain": 0.05,
}
"""Share of each kind among a world's entities."""

INFERENCES: Final = {
    "maternal grandmother": ("mother", "mother"),
    "maternal grandfather": ("mother", "father"),
    "paternal grandmother": ("father", "mother"),
    "paternal grandfather": ("father", "father"),
    "mother-in-law": ("spouse", "mother"),
    "father-in-law": ("spouse", "father"),
}
"""Relations that no page states, with the two stated relations from which each follows."""

COMPARED: Final = ("born", "chartered", "length", "height", "premiered", "published", "opened", "formed")
"""Relations whose values questions use to compare two entities."""

SHARED: Final = ("birthplace", "river", "seat", "home", "director", "author", "founder", "publisher")
"""Relations for which questions ask whether two entities have the same object."""

ROLES: Final = ("director", "author", "founder", "singer", "mayor", "climber")
"""Relations to a person through which bridge-comparisons compare two entities."""

MIX: Final = {
    ("single", 1): 0.20,
    ("compositional", 2): 0.25,
    ("inference", 2): 0.08,
    ("comparison", 2): 0.14,
    ("compositional", 3): 0.15,
    ("compositional", 4): 0.08,
    ("bridge-comparison", 4): 0.10,
}
"""Share of each (shape, hops) among a world's questions; hops is the number of pages that must be read."""

NAMED: Final = ("comparison", "bridge-comparison")
"""Shapes of questions that name their answer or are answered by yes or no."""


@dataclass(frozen=True, slots=True)
class Split:
    """Names, templates and relations of a split."""

    names: int
    """Group of the first name pieces: 0 for training, 1 for validation, 2 for test and transfer."""
    templates: int
    """Half of the templates: 0 for training and validation, 1 for those never used in training."""
    held_out: bool = False
    """Whether every question needs a held-out relation, which restricts shapes to chains."""


SPLITS: Final = {
    "train": Split(names=0, templates=0),
    "validation": Split(names=1, templates=0),
    "test": Split(names=2, templates=1),
    "transfer": Split(names=2, templates=1, held_out=True),
}
"""Splits of worlds, by name."""

STRATA: Final = ("1", "2-5", "6-20", "reformulation")
"""Strata of questions, by the worst rank of their gold pages when the question's text is the query.

In ``reformulation`` that rank is beyond 20, so the query must be rephrased.
"""


def mix_of(spec: WorldSpec) -> dict[tuple[str, int], float]:
    """Returns the shares of (shape, hops) in a world: those of `MIX` that the spec allows, rescaled to sum to 1."""
    allowed = {"single", "compositional"} if SPLITS[spec.split].held_out else {shape for shape, _ in MIX}
    shares = {cell: share for cell, share in MIX.items() if cell[1] in spec.hops and cell[0] in allowed}
    return {cell: share / sum(shares.values()) for cell, share in shares.items()}


def counts_of(spec: WorldSpec) -> dict[tuple[str, int], int]:
    """Returns the number of questions of each (shape, hops) in a world, by largest remainders, at least one each."""
    mix = mix_of(spec)
    counts = {cell: max(1, int(share * spec.size)) for cell, share in mix.items()}
    rest = sorted(mix, key=lambda cell: (counts[cell] - mix[cell] * spec.size, cell))
    for i in range(spec.size - sum(counts.values())):
        counts[rest[i % len(rest)]] += 1
    while sum(counts.values()) > spec.size:  # in a small world the minimum of one exceeds the total
        counts[max(counts, key=lambda cell: counts[cell])] -= 1
    return counts


def check_spec(spec: WorldSpec) -> None:
    """Checks that a world can be built from a specification.

    Raises:
        UnknownNameError: The level, split or a stratum is unknown.
        UsageError: The size is below 1 or below the number of shapes, hops are outside 1 to 4, or strata are given for
            a `simple` world.
    """
    if spec.level not in LEVELS:
        raise UnknownNameError("level", spec.level, LEVELS)
    if spec.split not in SPLITS:
        raise UnknownNameError("split", spec.split, SPLITS)
    if spec.size < 1:
        raise UsageError(f"a world needs a size of at least 1 question, got {spec.size}")
    if not spec.hops or not set(spec.hops) <= {1, 2, 3, 4} or len(set(spec.hops)) < len(spec.hops):
        raise UsageError(f"hops must be one or more of 1, 2, 3, 4 without repeats, got {list(spec.hops)}")
    if spec.strata and (spec.level != "full" or len(set(spec.strata)) < len(spec.strata)):
        raise UsageError(
            f"strata are chosen in worlds of level full, each once, got {list(spec.strata)} at {spec.level}"
        )
    for name in spec.strata:
        if name not in STRATA:
            raise UnknownNameError("stratum", name, STRATA)
    cells = mix_of(spec)
    if spec.size < len(cells):
        shapes = ", ".join(f"{shape} of {hops}" for shape, hops in cells)
        raise UsageError(
            f"a world of {spec.size} questions is too small for hops {list(spec.hops)} ({shapes}): "
            f"ask for a size of at least {len(cells)}, or for fewer hops"
        )
