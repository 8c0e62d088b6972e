"""Writes generated documents: facts spread over many sections of varied prose, among decoys of the same kind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.questions.documents.facts import LEAST, MOST, Facts, Subject
from searchgym.questions.documents.spec import DocumentsSpec
from searchgym.questions.documents.wording import wording
from searchgym.questions.worlds.language import language_of, sentence
from searchgym.questions.worlds.names import Namer
from searchgym.questions.worlds.schema import SPLITS
from searchgym.records import Passage

PASSAGE_WORDS: Final = 100
"""Maximum number of words of a passage."""
_SECTION_WORDS: Final = 450
_DECOYS: Final = 0.5
"""Probability that a count has a decoy: another number with the same quantity and time."""
_LINK_DECOYS: Final = 2
"""Number of wrong objects per link."""
_FRAMED: Final = 0.3
"""Share of clauses that are put into a frame."""
_MENTIONS: Final = 0.1
"""Share of the filler that mentions another document's subject."""
_NAMED: Final = 0.5
"""Share of the sentences that use the subject's name; the others say ``the ship``."""
_PEOPLE, _TOWNS = 80, 60
"""Numbers of invented people and towns in the filler, which have no documents."""
_YEARS: Final = range(1790, 1870)
"""Years in fillers and decoys, in which nothing was counted."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document."""

    title: str
    passages: tuple[Passage, ...]
    """Passages in order, with ids such as ``d012-034``; a section begins with a passage that has its heading."""
    stated: Mapping[str, Sequence[str]]
    """Verbatim sentences by key of the fact, one for each value."""

    @property
    def text(self) -> str:
        """Text of the whole document, as it opens: the passages, joined by line breaks."""
        return "\n".join(passage.text for passage in self.passages)


def write_documents(spec: DocumentsSpec, facts: Facts, rng: random.Random) -> dict[str, Document]:
    """Returns the documents by title, in random order."""
    writer = _Writer(spec, facts, rng)
    titles = list(facts.subjects)
    rng.shuffle(titles)
    width = max(3, len(str(len(titles) - 1)))
    return {title: writer.document(title, f"d{number:0{width}d}") for number, title in enumerate(titles)}


class _Writer:
    """Writer of all documents of a corpus."""

    def __init__(self, spec: DocumentsSpec, facts: Facts, rng: random.Random) -> None:
        self._spec, self._facts = spec, facts
        self._half = SPLITS[spec.split].templates
        self._key = rng.random()
        namer = Namer(spec.split, rng)
        self._people = [f"{namer.word('person')} {namer.word('surname')}" for _ in range(_PEOPLE)]
        self._towns = [namer.word("city") for _ in range(_TOWNS)]
        language, words = language_of("full"), wording()
        self._frames = language.frames[self._half]
        self._mentions = (language.mention_thing[self._half], language.mention_person[self._half])
        self._fillers, self._headings = words.fillers[self._half], words.headings[self._half]
        self._titles = list(facts.subjects)

    def document(self, title: str, id: str) -> Document:
        """Writes a document. Near-copies share the random generator, so that they differ in names and values only."""
        subject = self._facts.subjects[title]
        rng = random.Random(f"{self._key} {subject.kind} {subject.word}")
        stated = self._stated(subject, rng)
        important = [text for texts in stated.values() for text in texts] + self._decoys(subject, rng)
        sections: list[list[str]] = [[] for _ in range(max(4, self._spec.words // _SECTION_WORDS))]
        for text in important:
            rng.choice(sections).append(text)
        target = -(-self._spec.words // len(sections))
        passages: list[Passage] = []
        for number, texts in enumerate(sections):
            count = sum(len(text.split()) for text in texts)
            while count < target:
                texts.append(self._filler(subject, rng))
                count += len(texts[-1].split())
            rng.shuffle(texts)
            heading = self._headings[number % len(self._headings)]
            for text in _packed(texts, heading):
                passages.append(Passage(f"{id}-{len(passages):03d}", title, text))
        return Document(title, tuple(passages), stated)

    def _stated(self, subject: Subject, rng: random.Random) -> dict[str, tuple[str, ...]]:
        """Writes one sentence for each value of each fact of a document."""
        words, half = wording(), self._half
        stated: dict[str, tuple[str, ...]] = {}
        facts = self._facts.table[subject.title]
        kind = words.kinds[subject.kind]
        for quantity in kind.quantities:
            for when in kind.when:
                key = f"{quantity} {when}"
                template = rng.choice(words.counts["state"][half])
                stated[key] = (self._sentence(template, subject, rng, q=quantity, when=when, v=facts[key][0]),)
        for name, relation in (*words.links.items(), *words.lists.items()):
            if relation["from"] == subject.kind:
                stated[name] = tuple(
                    self._sentence(rng.choice(relation["state"][half]), subject, rng, o=self._facts.mention(value))
                    for value in facts[name]
                )
        return stated

    def _decoys(self, subject: Subject, rng: random.Random) -> list[str]:
        """Writes sentences with wrong values: other numbers for counts, other objects for links."""
        words, half, texts = wording(), self._half, list[str]()
        kind, facts = words.kinds[subject.kind], self._facts.table[subject.title]
        for quantity in kind.quantities:
            for when in kind.when:
                right = int(facts[f"{quantity} {when}"][0])
                wrong = {"part": rng.randint(1, LEAST - 1), "error": rng.randint(LEAST, MOST)}
                if rng.random() < _DECOYS:
                    sort = rng.choice(list(wrong))
                    number = wrong[sort] + (wrong[sort] == right)
                    template = rng.choice(words.counts[sort][half])
                    texts.append(self._sentence(template, subject, rng, q=quantity, when=when, v=number))
        for name, link in words.links.items():
            for _ in range(_LINK_DECOYS if link["from"] == subject.kind else 0):
                first, second = rng.sample(self._facts.of_kind(link["to"]), 2)
                other = self._facts.mention(first if (first,) != facts[name] else second)
                template = rng.choice(link["decoy"][half])
                texts.append(self._sentence(template, subject, rng, o=other, y=rng.choice(_YEARS)))
        return texts

    def _sentence(self, template: str, subject: Subject, rng: random.Random, **values: object) -> str:
        """Fills a clause about the subject, and makes a sentence of it, sometimes in a frame."""
        name = subject.mention if rng.random() < _NAMED else subject.noun
        return self._framed(template.format(s=name, **values), rng)

    def _framed(self, clause: str, rng: random.Random) -> str:
        """Returns a clause as a sentence, sometimes in a frame."""
        frame = rng.choice(self._frames)
        return sentence(frame.format(c=clause) if rng.random() < _FRAMED else clause) + "."

    def _filler(self, subject: Subject, rng: random.Random) -> str:
        """Returns a sentence that states no fact: about invented people and things, or a mention of another subject."""
        if rng.random() < _MENTIONS:
            first, second = rng.sample(self._titles, 2)
            name, other = subject.mention, self._facts.mention(first if first != subject.title else second)
            template = rng.choice(self._mentions[subject.kind == "person"])
            return self._framed(template.format(s=name, him=name, his=f"{name}'s", o=other), rng)
        words = wording()
        clause = rng.choice(self._fillers).format(
            p=rng.choice(self._people),
            r=rng.choice(self._people),
            t=rng.choice(self._towns),
            n=rng.choice(words.things),
            a=rng.choice(words.adjectives),
            m=rng.choice(words.months),
            l=rng.choice(words.months),
            y=rng.choice(_YEARS),
            k=rng.randint(LEAST, MOST),
        )
        return self._framed(clause, rng)


def _packed(sentences: Sequence[str], heading: str) -> Iterator[str]:
    """Yields the passages of a section: whole sentences, up to `PASSAGE_WORDS` words; the first has the heading."""
    parts, count = [f"{heading}\n"], len(heading.split())
    for text in sentences:
        length = len(text.split())
        if count + length > PASSAGE_WORDS:
            yield _joined(parts)
            parts, count = [], 0
        parts.append(text)
        count += length
    yield _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    """Returns a heading, which ends in a line break, and sentences as one text."""
    return "".join(part if part.endswith("\n") else f"{part} " for part in parts).strip()
