"""The language of level `full`: pages as in an encyclopedia, with pronouns, lists, aliases and passing mentions.

A page and a question never use the same word for a relation. In a clause, ``{s}`` (subject), ``{him}`` (object form)
and ``{his}`` (possessive) refer to the page's entity: the first by a name, a description or a pronoun, the others by
pronouns. ``{o}`` is the object of the fact. ``|`` splits a fact over two sentences.
"""

from __future__ import annotations

import random
import re
from typing import Final

from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.worlds.language import Language, Page, Pair, sentence
from searchgym.questions.worlds.phrases import groups as phrases_groups
from searchgym.questions.worlds.phrases import people as phrases_people
from searchgym.questions.worlds.phrases import places as phrases_places
from searchgym.questions.worlds.phrases import works as phrases_works
from searchgym.questions.worlds.schema import MEMBER

PHRASES: Final = phrases_people.PHRASES | phrases_places.PHRASES | phrases_works.PHRASES | phrases_groups.PHRASES
"""Templates of level `full`, by relation."""

ECHO: Final = 0.75
"""Probability that a page mentions an entity whose page refers to it, so that one query can find both pages."""
_ECHOES: Final = 3
"""Maximum number of such mentions per page."""
_WORDS: Final = (42, 70)
"""Smallest and largest target for the number of words, up to which passing mentions fill a page."""
_BY_ALIAS: Final = 0.3
"""Probability that a page refers to another entity by its alias, if it has one."""

_PLAIN: Final = 0.4
"""Probability that a clause becomes a sentence without a frame."""
_NAMED, _DESCRIBED = 0.25, 0.5
"""Probability that a sentence uses the name, and that it uses the name or a description; else it uses a pronoun."""

FRAMES: Final[Pair] = (
    (
        "by most accounts, {c}", "it is recorded that {c}", "as far as is known, {c}",
        "according to the archives, {c}", "several sources agree that {c}", "{c}, as the registers show",
        "it was long forgotten that {c}", "as readers may know, {c}", "few people doubt that {c}",
        "it bears repeating that {c}",
    ),
    (
        "the papers report that {c}", "on the evidence of letters, {c}", "by common consent, {c}",
        "{c}, if the chronicles are right", "there is agreement that {c}", "to the best of our knowledge, {c}",
        "an old almanac says that {c}", "{c}, as the story goes", "historians hold that {c}", "nobody denies that {c}",
    ),
)  # fmt: skip
"""Sentences into which a clause ``{c}`` is inserted, for each half of the templates; they multiply the phrasings."""

INTRO: Final[Pair] = (
    ("{s} is {kind}", "{s} is the name of {kind}", "{s} is {kind} of some repute",
     "{s} is {kind} that few outsiders know"),
    ("{s}, {kind}, is the subject here", "this entry deals with {kind}, {s}", "{s} is remembered as {kind}",
     "the heading {s} stands for {kind}"),
)  # fmt: skip
ALIAS: Final[Pair] = (
    ("{s} is also called {o}", "some sources use the name {o} for {him}", "{o} is another name for {him}"),
    ("older texts speak of {him} as {o}", "people on the spot say {o} instead", "{s} has a second name, {o}"),
)
MENTION_PERSON: Final[Pair] = (
    ("{s} once gave a talk on {o}", "{o} comes up several times in {his} diaries",
     "in old age {s} liked to talk about {o}", "{s} kept a picture of {o} on {his} desk",
     "a postcard with a view of {o} was found among {his} things", "{s} quarrelled in public over {o}",
     "critics saw a debt to {o} in {his} manner", "{s} left a note on {o} unfinished"),
    ("{his} sketchbooks contain a page on {o}", "{s} collected cuttings about {o}", "asked about {o}, {s} only smiled",
     "{s} took a lasting dislike to {o}", "an anecdote links {him} and {o}", "{s} admired {o} from afar",
     "a song of the time makes fun of {him} and {o}", "{s} dreamt of {o} more than once"),
)  # fmt: skip
MENTION_THING: Final[Pair] = (
    ("{s} is often mentioned together with {o}", "an essay compares {him} with {o}", "some take {him} for {o}",
     "guidebooks treat {him} next to {o}", "{s} shares a chapter with {o} in one survey",
     "a quiz once confused {him} with {o}", "a stamp shows {him} and {o}", "{s} has little in common with {o}"),
    ("a lexicon sets {him} beside {o}", "schoolchildren mix {him} up with {o}", "one poster shows {him} and {o}",
     "the same exhibition dealt with {him} and {o}", "a joke connects {him} and {o}",
     "{s} has been ranked just below {o}", "a riddle plays on {him} and {o}", "columnists weigh {him} against {o}"),
)  # fmt: skip
_PRONOUNS: Final = {"she": ("she", "her", "her"), "he": ("he", "him", "his"), "it": ("it", "it", "its")}
_FORMS: Final = {"s": 0, "him": 1, "his": 2}
_KINDS: Final = {"film": "film", "book": "book", "company": "company", "band": "group", "city": "city",
                 "river": "river", "mountain": "mountain"}  # fmt: skip


class Full(Language):
    """Language of level `full`, with pages of many wordings; those of namesakes differ only in their values."""

    def page(self, graph: Graph, entity: Entity, half: int, rng: random.Random) -> Page:
        """Returns the page of an entity: an introduction, the facts in random order, and mentions of other entities."""
        writer = _Writer(graph, entity, half, rng)
        alike = writer.alike
        kind = entity.note or _KINDS[entity.kind]
        writer.say(alike.choice(INTRO[half]).format(s=entity.name, kind=f"{_article(kind)} {kind}"))
        for alias in entity.aliases:
            writer.clause(alike.choice(ALIAS[half]), alias)
        relations = [relation for relation in graph.facts[entity.title] if relation in self.phrases]
        alike.shuffle(relations)
        for relation in relations:
            writer.fact(relation, alike.choice(self.phrases[relation].state[half]))
        mentions = (MENTION_PERSON if entity.kind == "person" else MENTION_THING)[half]
        texts = rng.sample(mentions, len(mentions))
        echoes = _pointing_here(graph, entity, rng)
        target = rng.randint(*_WORDS)
        others = [other.title for other in graph.of_kind(entity.kind if rng.random() < 0.5 else "person")]
        while texts and (echoes or writer.words < target):
            title = echoes.pop() if echoes else rng.choice(others)
            if title != entity.title:
                writer.clause(texts.pop(), graph.entities[title].mention)
        return Page(tuple(writer.sentences), writer.where)


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _pointing_here(graph: Graph, entity: Entity, rng: random.Random) -> list[str]:
    """Returns the titles of some entities with a fact whose object is this entity."""
    back = graph.back.get(entity.title, {})
    titles = [title for relation, subjects in back.items() if relation != MEMBER for title in subjects]
    titles = [title for title in dict.fromkeys(titles) if rng.random() < ECHO]
    return rng.sample(titles, min(len(titles), _ECHOES))


class _Writer:
    """Writer of one page, sentence by sentence."""

    def __init__(self, graph: Graph, entity: Entity, half: int, rng: random.Random) -> None:
        self._graph, self._entity, self._half, self._rng = graph, entity, half, rng
        self.alike = random.Random(f"{graph.key} {entity.kind} {entity.name}")
        """Random generator that is the same for namesakes, so that their pages are worded alike."""
        self.sentences: list[str] = []
        self.where: dict[str, tuple[int, ...]] = {}
        self.words = 0

    def say(self, text: str) -> None:
        """Adds a sentence to the page, with a capital and a full stop."""
        self.words += len(text.split())
        self.sentences.append(("" if not self.sentences else " ") + sentence(text) + ".")

    def fact(self, relation: str, clause: str) -> None:
        """Adds the sentences of a fact and records which they are."""
        objects = [self._shown(value) for value in self._graph.facts[self._entity.title][relation]]
        first = len(self.sentences)
        self.clause(clause, " and ".join([", ".join(objects[:-1]), objects[-1]] if len(objects) > 1 else objects))
        self.where[relation] = tuple(range(first, len(self.sentences)))

    def clause(self, clause: str, value: str) -> None:
        """Adds a clause about the page's entity and `value`: in a frame, plain, or as two sentences at ``|``."""
        text = self._refer(clause).replace("{o}", value)
        if "|" in text:
            for piece in text.split("|"):
                self.say(piece.strip())
        else:
            plain = self.alike.random() < _PLAIN
            self.say(text if plain else self.alike.choice(FRAMES[self._half]).format(c=text))

    def _shown(self, value: str) -> str:
        """Returns an object as the page shows it: a literal, a mention of an entity, or sometimes its alias."""
        entity = self._graph.entities.get(value)
        if entity is None:
            return value
        return entity.aliases[0] if entity.aliases and self._rng.random() < _BY_ALIAS else entity.mention

    def _refer(self, clause: str) -> str:
        """Returns a clause with its subject filled in: first by name, description or pronoun, then by pronouns."""
        pronouns = _PRONOUNS[self._entity.gender]
        draw = self.alike.random()
        name = self._entity.name if draw < _NAMED else f"the {self._noun()}" if draw < _DESCRIBED else ""
        forms = [(name, name, f"{name}'s") if name else pronouns]

        def fill(match: re.Match[str]) -> str:
            return (forms.pop() if forms else pronouns)[_FORMS[match[1]]]

        return re.sub(r"\{(s|him|his)\}", fill, clause)

    def _noun(self) -> str:
        return self._entity.note or _KINDS[self._entity.kind]


FULL: Final = Full(
    phrases=PHRASES,
    bridge=(
        (
            "Which {kind} has the {age} {role}, {a} or {b}?",
            "Which {kind} is the one with the {age} {role}, {a} or {b}?",
        ),
        ("Of which {kind} is the {role} {age}, {a} or {b}?", "The {role} of which {kind} is {age}, {a} or {b}?"),
    ),
    bridge_same=(
        ("Did the {role}s of {a} and {b} grow up in the same place?",),
        ("Did the {role}s of {a} and {b} start out in one and the same place?",),
    ),
    roles={
        "director": ("filmmaker", "helmsperson"),
        "author": ("author", "literary mind"),
        "founder": ("creator", "entrepreneur"),
        "singer": ("vocalist", "frontperson"),
        "mayor": ("town hall head", "leader"),
        "climber": ("pioneer", "conqueror"),
    },
    kinds={
        "film": ("film", "motion picture"),
        "book": ("book", "volume"),
        "company": ("company", "firm"),
        "band": ("group", "act"),
        "city": ("city", "place"),
        "mountain": ("mountain", "peak"),
    },
    inferences={
        "maternal grandmother": ("maternal grandmother", "grandmother on the maternal side"),
        "maternal grandfather": ("maternal grandfather", "grandfather on the maternal side"),
        "paternal grandmother": ("paternal grandmother", "grandmother on the paternal side"),
        "paternal grandfather": ("paternal grandfather", "grandfather on the paternal side"),
        "mother-in-law": ("mother-in-law", "spouse's female parent"),
        "father-in-law": ("father-in-law", "spouse's male parent"),
    },
)
