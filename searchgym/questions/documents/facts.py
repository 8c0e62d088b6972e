"""Draws the subjects and facts of generated documents, and looks up the answers of questions in them."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.questions.documents.spec import DocumentsSpec
from searchgym.questions.documents.wording import wording
from searchgym.questions.worlds.names import Namer

COPIES: Final = 0.2
"""Share of subjects whose title has the word of an earlier subject, and whose document is worded like its document."""
LEAST, MOST = 101, 989
"""Smallest and largest count."""
MEMBERS: Final = 6
"""Maximum number of institutions in a list, and the minimum share of all: a third of them in a small corpus."""
POOL: Final = 18
"""Number of neighbouring institutions from which a list is drawn, so that lists overlap however many there are."""
_FIRST_NAMES: Final = 24
_NEW_WORD: Final = 0.2
"""Probability of a new word after a title that is in use."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of one document."""

    title: str
    mention: str
    """Name in running text, such as ``the steamship Galuth``."""
    kind: str
    noun: str
    """What the document calls it instead, such as ``the ship``."""
    word: str
    """Invented word of the title, which near-copies share."""


Table = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Facts by title of the only document that states them and by key, each with its values: one number or title, or the
titles of a list. The key of a count is its quantity and time, such as ``lamps in 1884``."""


class Form(NamedTuple):
    """Logical form of a question."""

    kind: str
    """``chain``, ``sum``, ``spread`` (the largest less the smallest) or ``intersection``."""
    steps: tuple[tuple[str, str], ...]
    """Title and key of each fact. In a chain only the first title is part of the question; the others follow."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Subjects and facts of a set of documents."""

    subjects: Mapping[str, Subject]
    """Subjects by title, in the order in which they were drawn."""
    table: Table

    def of_kind(self, kind: str) -> list[str]:
        """Returns the titles of the subjects of a kind."""
        return [subject.title for subject in self.subjects.values() if subject.kind == kind]

    def display(self, value: str) -> str:
        """Returns a value as text: the name of a subject without its article, or the number."""
        return self.subjects[value].mention.removeprefix("the ") if value in self.subjects else value

    def mention(self, value: str) -> str:
        """Returns a value as written in a sentence."""
        return self.subjects[value].mention if value in self.subjects else value


def count_key(quantity: str, when: str) -> str:
    """Returns the key of a count."""
    return f"{quantity} {when}"


def answers_of(table: Table, form: Form, without: Collection[str] = ()) -> tuple[str, ...]:
    """Returns every answer of a question that a set of documents allows; none if a fact is unavailable.

    A document that was removed states nothing: a list of unknown members excludes no institution.

    Args:
        table: Facts of all documents.
        form: The question.
        without: Titles of removed documents.
    """

    def values(title: str, key: str) -> tuple[str, ...]:
        return () if title in without else table[title].get(key, ())

    if form.kind == "chain":
        frontier = {form.steps[0][0]}
        for _, key in form.steps:
            frontier = {value for title in frontier for value in values(title, key)}
        return tuple(sorted(frontier))
    stated = [values(title, key) for title, key in form.steps]
    if form.kind == "intersection":
        members = [set(titles) for titles in stated if titles]
        return tuple(sorted(set.intersection(*members))) if members else ()
    if not all(stated):
        return ()
    numbers = [int(value) for (value,) in stated]
    return (str(sum(numbers) if form.kind == "sum" else max(numbers) - min(numbers)),)


def draw_facts(spec: DocumentsSpec, rng: random.Random) -> Facts:
    """Returns random subjects and facts.

    Raises:
        UsageError: No new names are left.
    """
    subjects = _subjects(spec, rng)
    titles = {kind: [s.title for s in subjects if s.kind == kind] for kind in wording().kinds}
    decks: dict[str, list[str]] = {}
    return Facts(
        {subject.title: subject for subject in subjects},
        {subject.title: _facts_of(subject, titles, decks, rng) for subject in subjects},
    )


def _subjects(spec: DocumentsSpec, rng: random.Random) -> list[Subject]:
    """Draws the subjects, kind by kind."""
    namer = Namer(spec.split, rng)
    first_names = [namer.word("person") for _ in range(_FIRST_NAMES)]
    kinds = wording().kinds
    counts = {name: round(kind.share * spec.documents) for name, kind in kinds.items()}
    counts["person"] += spec.documents - sum(counts.values())  # rounding
    subjects, titles = list[Subject](), set[str]()
    for name, kind in kinds.items():
        words: list[str] = []
        for _ in range(counts[name]):
            copied = bool(words) and rng.random() < COPIES
            word = rng.choice(words) if copied else namer.word(kind.name)
            title = rng.choice(kind.titles).format(w=word, f=rng.choice(first_names))
            while title in titles:  # the word may be in use in all of them
                word = namer.word(kind.name) if rng.random() < _NEW_WORD else word
                title = rng.choice(kind.titles).format(w=word, f=rng.choice(first_names))
            words.append(word)
            titles.add(title)
            base, _, note = title.removesuffix(")").partition(" (")
            mention = kind.mention.format(title=title, name=base, note=note)
            subjects.append(Subject(title, mention, name, f"the {kind.noun}", word))
    return subjects


def _facts_of(
    subject: Subject, titles: Mapping[str, Sequence[str]], decks: dict[str, list[str]], rng: random.Random
) -> dict[str, tuple[str, ...]]:
    """Draws the facts of one document; objects of a relation are drawn without replacement until all were used."""
    words = wording()
    kind = words.kinds[subject.kind]
    keys = [count_key(quantity, when) for quantity in kind.quantities for when in kind.when]
    numbers = rng.sample(range(LEAST, MOST + 1), len(keys))
    facts: dict[str, tuple[str, ...]] = {key: (str(number),) for key, number in zip(keys, numbers, strict=True)}
    for name, link in words.links.items():
        if link["from"] == subject.kind:
            deck = decks.setdefault(name, [])
            if not deck:
                deck.extend(rng.sample(titles[link["to"]], len(titles[link["to"]])))
            facts[name] = (deck.pop(),)
    institutions = titles["institution"]
    for name, relation in words.lists.items():
        if relation["from"] == subject.kind:
            start = rng.randrange(len(institutions))
            pool = [institutions[(start + step) % len(institutions)] for step in range(min(POOL, len(institutions)))]
            facts[name] = tuple(sorted(rng.sample(pool, min(MEMBERS, len(pool) // 3))))
    return facts
