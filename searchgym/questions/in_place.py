"""Questions made of sentences: a part of a sentence gives its place to the words that ask for it.

"Ann Bell was born in Leeds" becomes "Ann Bell was born in what place?". With two hops the sentence does not name its
page: "The director of the film Tides was born in what place?". Such questions are as varied as the corpus, where those
of relations have few wordings; which parts are asked for, and how, is said by the pack.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import regex

from searchgym.questions.cloze import LEAST, MOST, naming
from searchgym.questions.draw import Draft
from searchgym.questions.graphs.patterns import SECONDS
from searchgym.questions.source import FactBase
from searchgym.questions.spec import SENTENCE
from searchgym.records import Hop
from searchgym.text import base_title, norm, sentences, tidy

_FIRST: Final = 6
"""Number of sentences of a page that are made into questions."""
_LONGEST_ANSWER: Final = 6
"""Most words of an answer."""
_REST: Final = 12
"""Most words that a question keeps behind the words that ask."""
_PRONOUN: Final = re.compile(r"(?:It|He|She|They|This|That|These|There|His|Her|Its|Their)\b")
_GOES_ON: Final = re.compile(r"(?:\s+(?:and|&|or|of))?\s+[\"“(]?[^\W\d_a-z]|[-–’']\w")
"""Matches behind a part that goes on: ``Abbott`` of ``Abbott and Costello``."""
_BEGUN: Final = re.compile(r"[^\W\d_a-z]\w*\s+(?:of|from|for|in|the|and|&)(?:\s+the)?\s+$|[^\W\d_a-z]\w*\s+$|-$")
"""Matches before a part that begins earlier: ``Chartres`` of ``Duke of Chartres``."""
_ARTICLE: Final = re.compile(r"\b(?:[Tt]he|[Aa]n?)\s+$")


@dataclass(frozen=True, slots=True)
class SentenceQuestion:
    """A sentence of a page as a question."""

    text: str
    """The question, which names its page."""
    answer: str


def draw_sentences(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields questions made of sentences.

    Args:
        source: Pages that may be asked about, and a pack with `Pack.spans`.
        hops: One page, or two of which the first leads to the other by a relation.
        rng: Draws the order, and one part of each sentence.
    """
    spans = [(source.pack.compiled(s.pattern, f"spans[{n}]"), s.ask) for n, s in enumerate(source.pack.spans)]
    if not spans:
        return
    pages = sorted(source.allowed)
    rng.shuffle(pages)
    for page in pages:
        if hops == 1:
            for asked in sentences_of(source, page, spans, rng):
                yield Draft(SENTENCE, asked.text, asked.answer, (page,))
        elif source.nameable(page):
            yield from _through(source, page, spans, rng)


def _through(
    source: FactBase, page: int, spans: Sequence[tuple[regex.Pattern[str], str]], rng: random.Random
) -> Iterator[Draft]:
    """Yields questions about the pages that a page's facts lead to, which are named by that page alone."""
    for relation, fact in source.of_page[page].items() if page in source.of_page else ():
        said = source.pack.relations[relation]
        if not said.noun or fact.target is None or fact.target not in source.allowed:
            continue
        name, described = source.name(fact.target), said.noun.format(s=source.mention(page))
        for asked in sentences_of(source, fact.target, spans, rng):
            text = asked.text.replace(base_title(source.passages[fact.target].title), described, 1)
            if text == asked.text:
                continue
            steps = (
                Hop((said.ask or f"What is the {relation} of {{s}}?").format(s=source.mention(page)), name),
                Hop(asked.text.replace(name, "#1", 1), asked.answer),
            )
            text = text[0].upper() + text[1:]
            pages = (page, fact.target)
            yield Draft(SENTENCE, text, asked.answer, pages, waypoints=(name,), relations=(relation,), steps=steps)


def sentences_of(
    source: FactBase, page: int, spans: Sequence[tuple[regex.Pattern[str], str]], rng: random.Random
) -> Iterator[SentenceQuestion]:
    """Yields the first sentences of a page as questions, one for each sentence that has a part to ask for."""
    passage = source.passages[page]
    places = sentences(passage.text)[:_FIRST]
    title = base_title(passage.title)
    for start, end in places:
        sentence = naming(source, page, without_brackets(tidy(passage.text[start:end])))
        if sentence is None or _PRONOUN.match(sentence) or not LEAST <= len(sentence.split()) <= MOST:
            continue
        found = parts_of(sentence, spans, title)
        if not found:
            continue
        start_of, end_of, ask = rng.choice(found)
        answer = sentence[start_of:end_of]
        if norm(answer) not in source.forbidden:
            yield SentenceQuestion(_worded(sentence, start_of, end_of, ask), answer)


def parts_of(sentence: str, spans: Sequence[tuple[regex.Pattern[str], str]], title: str) -> list[tuple[int, int, str]]:
    """Returns the parts of a sentence that can be asked for: start, end and the words that ask."""
    found: list[tuple[int, int, str]] = []
    own = set(norm(title).split())
    for pattern, ask in spans:
        try:
            matches = list(pattern.finditer(sentence, timeout=SECONDS))
        except TimeoutError:
            continue
        for match in matches:
            start, end = match.span("object")
            words = norm(sentence[start:end]).split()
            overlaps = any(start < other_end and other < end for other, other_end, _ in found)
            fits = bool(words) and len(words) <= _LONGEST_ANSWER and not own & set(words)
            if fits and not overlaps and is_whole(sentence, start, end):
                found.append((start, end, ask))
    return found


def is_whole(sentence: str, start: int, end: int) -> bool:
    """Returns whether a part of a sentence is a whole name: it neither begins earlier nor goes on."""
    return not _BEGUN.search(sentence, 0, start) and not _GOES_ON.match(sentence, end)


def _worded(sentence: str, start: int, end: int, ask: str) -> str:
    """Returns the question for a part of a sentence; what stands far behind the part is left out."""
    before = _ARTICLE.sub("", sentence[:start])
    rest = sentence[end:].rstrip(". ")
    if len(rest.split()) > _REST and not ask.startswith("how"):
        rest = ""
    text = f"{before}{ask}{rest}".rstrip(" ,;:.(")
    if text.count('"') % 2:
        at = text.rindex('"')
        text = text[:at] + text[at + 1 :]
    text = f"{text}?"
    return text[0].upper() + text[1:]


def without_brackets(text: str) -> str:
    """Returns a text without what stands in round brackets."""
    return re.sub(r"\s*\([^()]*\)", "", text)
