"""Questions without a pack: sentences with a hidden name.

A whole sentence with one hidden name is reading practice. A chain hides two names: the sentence that leads from the
first page to the second, and a short phrase of the second page around the name asked for. The phrase is short because
copied sentences find their own page: with whole sentences one search finds both pages of nearly nine in ten.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from searchgym.questions.draw import Draft
from searchgym.questions.graphs.links import Link
from searchgym.questions.source import FactBase
from searchgym.records import Hop
from searchgym.text import base_title, holds, sentence_at, sentences, tidy, unlinked, words

LEAST, MOST = 6, 45
"""Number of words that a copied sentence may have."""
_BEFORE, _AFTER = 6, 3
"""Number of words of a phrase before and behind the name that it hides."""
_PRONOUN: Final = {"person": re.compile(r"(He|She|His|Her)\b"), "work": re.compile(r"(It|Its)\b")}
"""Pronouns that stand for a page's own subject at the beginning of a sentence, by kind."""


def draw_cloze(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields sentences with a hidden name (one hop), or chains of two hidden names (two hops)."""
    links = [link for link in source.facts.links if {link.source, link.target} <= source.allowed]
    rng.shuffle(links)
    of_page: defaultdict[int, list[Link]] = defaultdict(list)
    for link in links:
        of_page[link.source].append(link)
    for link in links:
        if hops == 1:
            sentence = _sentence(source, link, "_____")
            if sentence is not None:
                answer, names = _hidden(source, link)
                yield Draft("cloze", f'Fill in the blank: "{sentence}"', answer, (link.source,), names=names)
            continue
        first = _sentence(source, link, "[A]")
        for second in of_page[link.target]:
            phrase = _phrase(source, second)
            if first is not None and phrase is not None and second.target not in (link.source, link.target):
                yield _chain(source, link, second, first, phrase)


def _chain(source: FactBase, link: Link, second: Link, first: str, phrase: str) -> Draft:
    """Returns the draft of two hidden names."""
    (waypoint, _), (answer, names) = _hidden(source, link), _hidden(source, second)
    text = f'Two names are hidden. "{first}" The page of [A] says: "... {phrase} ..." What is [B]?'
    steps = (Hop(f'What is [A]? "{first}"', waypoint), Hop(f'What is [B] on the page of #1? "{phrase}"', answer))
    pages = (link.source, link.target)
    return Draft("cloze-chain", text, answer, pages, waypoints=(waypoint,), steps=steps, names=names)


def _hidden(source: FactBase, link: Link) -> tuple[str, tuple[str, ...]]:
    """Returns the words that name a link's target, and the target's title if that is another name."""
    said = tidy(source.passages[link.source].text[link.start : link.end]).strip("`*_ ")
    title = base_title(source.passages[link.target].title)
    return said, () if said == title else (title,)


def _sentence(source: FactBase, link: Link, slot: str) -> str | None:
    """Returns the sentence of a link with the name replaced; it names its own page. None if it is unfit."""
    text = source.passages[link.source].text
    start, end = sentence_at(sentences(text), link.start)
    sentence = tidy(unlinked(f"{text[start : link.start]}{slot}{text[link.end : end]}"))
    if not LEAST <= len(sentence.split()) <= MOST or holds(sentence, base_title(source.passages[link.target].title)):
        return None
    return naming(source, link.source, sentence) or f"{source.name(link.source)}: {sentence}"


def naming(source: FactBase, page: int, sentence: str) -> str | None:
    """Returns a sentence that names its page, if need be in place of a first pronoun; None if it has neither."""
    if holds(sentence, base_title(source.passages[page].title)):
        return sentence
    pronoun = _PRONOUN.get(source.facts.kinds[page] or "")
    said = None if pronoun is None else pronoun.match(sentence)
    if said is None:
        return None
    own = "'s" if said[1] in ("His", "Her", "Its") else ""
    return f"{source.name(page)}{own}{sentence[said.end() :]}"


def _phrase(source: FactBase, link: Link) -> str | None:
    """Returns the few words around a link within its sentence, with the name replaced by ``[B]``."""
    text = source.passages[link.source].text
    start, end = sentence_at(sentences(text), link.start)
    left, _, right = unlinked(f"{text[start : link.start]}[B]{text[link.end : end]}").partition("[B]")
    before, after = words(left)[-_BEFORE:], words(right)[:_AFTER]
    if len(before) < 2:
        return None
    phrase = tidy(f"{left[before[0].start :]}[B]{right[: after[-1].end] if after else ''}")
    return None if holds(phrase, base_title(source.passages[link.target].title)) else phrase
