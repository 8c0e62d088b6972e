"""Writes the pages of a world: short pages that state each fact once, or encyclopedia-like pages."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.worlds.language import Language, sentence
from searchgym.questions.worlds.schema import MEMBER

ECHO: Final = 0.75
"""Probability that a page mentions an entity whose page refers back to it, so that one query can find both pages."""
_ECHOES: Final = 3
"""Maximum number of such mentions per page."""
_WORDS: Final = (42, 70)
"""Minimum and maximum of the target number of words; passing mentions fill a page up to the target."""
_BY_ALIAS: Final = 0.3
"""Probability that a page refers to another entity by its alias, if it has one."""
_PLAIN: Final = 0.4
"""Probability that a clause becomes a sentence without a frame."""
_NAMED, _DESCRIBED = 0.25, 0.5
"""Cumulative probabilities that a sentence uses the name, or the name or a description; else it uses a pronoun."""
_PRONOUNS: Final = {"she": ("she", "her", "her"), "he": ("he", "him", "his"), "it": ("it", "it", "its")}
_FORMS: Final = {"s": 0, "him": 1, "his": 2}
_NOUNS: Final = {"band": "group"}
"""Words for kinds of entities other than the kind itself."""


class WrittenPage(NamedTuple):
    """A page as a list of sentences."""

    sentences: tuple[str, ...]
    """Sentences with the spaces between them, so that their concatenation is the text."""
    where: Mapping[str, tuple[int, ...]]
    """Indices of the sentences that state each relation."""


def write_page(language: Language, graph: Graph, entity: Entity, half: int, rng: random.Random) -> WrittenPage:
    """Returns the page of an entity.

    Args:
        language: Wordings of the world's level; with `Language.frames`, pages are encyclopedia-like.
        graph: Graph of the world.
        entity: Entity that the page is about.
        half: Half of the templates: 0 for training, 1 for the others.
        rng: Random generator of the world.
    """
    if language.frames:
        return _Writer(language, graph, entity, half, rng).page()
    kind = {"she": "woman", "he": "man"}.get(entity.gender, entity.kind)
    sentences = [rng.choice(language.intro[half]).format(s=entity.mention, kind=kind)]
    relations = list(graph.facts[entity.title])
    rng.shuffle(relations)
    where = {}
    for relation in relations:
        (value,) = graph.facts[entity.title][relation]
        clause = rng.choice(language.phrases[relation].state[half])
        where[relation] = (len(sentences),)
        sentences.append(f" {sentence(clause.format(s=entity.mention, o=graph.mention(value)))}.")
    return WrittenPage(tuple(sentences), where)


class _Writer:
    """Writer of one page of level `full` with varied wording; pages of namesakes differ only in their values."""

    def __init__(self, language: Language, graph: Graph, entity: Entity, half: int, rng: random.Random) -> None:
        self._language, self._graph, self._entity, self._half, self._rng = language, graph, entity, half, rng
        self._alike = random.Random(f"{graph.key} {entity.kind} {entity.name}")
        """Random generator shared by namesakes, so that their pages are worded alike."""
        self._noun = entity.note or _NOUNS.get(entity.kind, entity.kind)
        self._sentences: list[str] = []
        self._where: dict[str, tuple[int, ...]] = {}

    def page(self) -> WrittenPage:
        """Writes an introduction, the facts in random order, and mentions of other entities."""
        language, graph, entity, half = self._language, self._graph, self._entity, self._half
        alike, rng = self._alike, self._rng
        kind = f"{'an' if self._noun[0] in 'aeiou' else 'a'} {self._noun}"
        self._say(alike.choice(language.intro[half]).format(s=entity.name, kind=kind))
        for alias in entity.aliases:
            self._clause(alike.choice(language.alias[half]), alias)
        relations = [relation for relation in graph.facts[entity.title] if relation in language.phrases]
        alike.shuffle(relations)
        for relation in relations:
            clause, first = alike.choice(language.phrases[relation].state[half]), len(self._sentences)
            objects = [self._object(value) for value in graph.facts[entity.title][relation]]
            self._clause(clause, " and ".join([", ".join(objects[:-1]), objects[-1]] if len(objects) > 1 else objects))
            self._where[relation] = tuple(range(first, len(self._sentences)))
        mentions = (language.mention_person if entity.kind == "person" else language.mention_thing)[half]
        texts = rng.sample(mentions, len(mentions))
        back = graph.back.get(entity.title, {})
        pointing = [title for relation, subjects in back.items() if relation != MEMBER for title in subjects]
        pointing = [title for title in dict.fromkeys(pointing) if rng.random() < ECHO]
        echoes = rng.sample(pointing, min(len(pointing), _ECHOES))
        target = rng.randint(*_WORDS)
        others = [other.title for other in graph.of_kind(entity.kind if rng.random() < 0.5 else "person")]
        while texts and (echoes or sum(len(text.split()) for text in self._sentences) < target):
            title = echoes.pop() if echoes else rng.choice(others)
            if title != entity.title:
                self._clause(texts.pop(), graph.entities[title].mention)
        return WrittenPage(tuple(self._sentences), self._where)

    def _say(self, text: str) -> None:
        """Adds a sentence to the page, with an initial capital and a full stop."""
        self._sentences.append(("" if not self._sentences else " ") + sentence(text) + ".")

    def _object(self, value: str) -> str:
        """Returns an object as written on the page: a literal, a mention of an entity, or sometimes its alias."""
        entity = self._graph.entities.get(value)
        aliases = () if entity is None else entity.aliases
        return aliases[0] if aliases and self._rng.random() < _BY_ALIAS else self._graph.mention(value)

    def _clause(self, clause: str, value: str) -> None:
        """Adds a clause about the page's entity and `value`: in a frame, plain, or as two sentences at ``|``.

        The first reference to the entity is a name, description or pronoun; later ones are pronouns.
        """
        pronouns = _PRONOUNS[self._entity.gender]
        draw = self._alike.random()
        name = self._entity.name if draw < _NAMED else f"the {self._noun}" if draw < _DESCRIBED else ""
        forms = [(name, name, f"{name}'s") if name else pronouns]

        def fill(match: re.Match[str]) -> str:
            return (forms.pop() if forms else pronouns)[_FORMS[match[1]]]

        text = re.sub(r"\{(s|him|his)\}", fill, clause).replace("{o}", value)
        if "|" in text:
            for piece in text.split("|"):
                self._say(piece.strip())
        else:
            plain = self._alike.random() < _PLAIN
            self._say(text if plain else self._alike.choice(self._language.frames[self._half]).format(c=text))
