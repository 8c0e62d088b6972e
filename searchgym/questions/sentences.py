"""Questions made from sentences of pages: names are hidden, or a part is replaced by a question phrase.

A whole sentence with one hidden name is reading practice. A chain hides two names: one in the sentence of the first
page that links to the second, and one in a short phrase of the second page, which is the answer. The phrase is short
because a copied sentence retrieves its own page: with whole sentences, one search finds both pages of nearly nine
questions in ten.

"Ann Bell was born in Leeds" becomes "Ann Bell was born in what place?". With two hops the sentence does not name its
page: "The director of the film Tides was born in what place?". Such questions are as varied as the corpus, whereas
questions about relations have few wordings. The pack defines which parts are asked for, and the question phrases.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import regex

from searchgym.questions.graphs.links import Link
from searchgym.questions.graphs.patterns import SECONDS
from searchgym.questions.shapes.draft import Draft
from searchgym.questions.source import FactBase
from searchgym.questions.spec import SENTENCE
from searchgym.records import Hop
from searchgym.text import base_title, holds, norm, sentence_at, sentences, tidy, unlinked, words

LEAST, MOST = 6, 45
"""Minimum and maximum number of words of a copied sentence."""
_BEFORE, _AFTER = 6, 3
"""Number of words of a phrase before and after the hidden name."""
_SUBJECTS: Final = {"person": re.compile(r"(He|She|His|Her)\b"), "work": re.compile(r"(It|Its)\b")}
"""Pronouns at the start of a sentence that refer to the page's subject, by kind."""
_FIRST: Final = 6
"""Number of leading sentences of a page that become questions."""
_LONGEST_ANSWER: Final = 6
"""Maximum number of words of an answer."""
_REST: Final = 12
"""Maximum number of words kept after the question phrase; a longer rest is dropped."""
_PRONOUN: Final = re.compile(r"(?:It|He|She|They|This|That|These|There|His|Her|Its|Their)\b")
_GOES_ON: Final = re.compile(r"(?:\s+(?:and|&|or|of))?\s+[\"“(]?[^\W\d_a-z]|[-–’']\w")
"""Matches text after a part that shows the name is longer: ``Abbott`` in ``Abbott and Costello``."""
_BEGUN: Final = re.compile(r"[^\W\d_a-z]\w*\s+(?:of|from|for|in|the|and|&)(?:\s+the)?\s+$|[^\W\d_a-z]\w*\s+$|-$")
"""Matches text before a part that shows the name begins earlier: ``Chartres`` in ``Duke of Chartres``."""
_ARTICLE: Final = re.compile(r"\b(?:[Tt]he|[Aa]n?)\s+$")


Patterns = Sequence[tuple[regex.Pattern[str], str]]
"""Patterns of the parts of sentences that can be asked for, each with its question phrase."""


# -- hidden names --------------------------------------------------------------------------------------------------


def draw_cloze(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of sentences with one hidden name (one hop), or of chains with two (two hops)."""
    links = [link for link in source.facts.links if {link.source, link.target} <= source.allowed]
    rng.shuffle(links)
    of_page: defaultdict[int, list[Link]] = defaultdict(list)
    for link in links:
        of_page[link.source].append(link)
    for link in links:
        first = _sentence(source, link, "_____" if hops == 1 else "[A]")
        if first is None:
            continue
        name, others = _hidden(source, link)
        if hops == 1:
            yield Draft("cloze", f'Fill in the blank: "{first}"', name, (link.source,), names=others)
            continue
        for second in of_page[link.target]:
            phrase = _phrase(source, second)
            if phrase is None or second.target in (link.source, link.target):
                continue
            answer, names = _hidden(source, second)
            text = f'Two names are hidden. "{first}" The page of [A] says: "... {phrase} ..." What is [B]?'
            steps = (Hop(f'What is [A]? "{first}"', name), Hop(f'What is [B] on the page of #1? "{phrase}"', answer))
            pages = (link.source, link.target)
            yield Draft("cloze-chain", text, answer, pages, waypoints=(name,), steps=steps, names=names)


def _hidden(source: FactBase, link: Link) -> tuple[str, tuple[str, ...]]:
    """Returns the words that name a link's target, and the target's title if it differs."""
    mention = tidy(source.passages[link.source].text[link.start : link.end]).strip("`*_ ")
    title = base_title(source.passages[link.target].title)
    return mention, () if mention == title else (title,)


def _sentence(source: FactBase, link: Link, slot: str) -> str | None:
    """Returns the sentence of a link with the name replaced and its own page named; None if it is unsuitable."""
    text = source.passages[link.source].text
    start, end = sentence_at(sentences(text), link.start)
    sentence = tidy(unlinked(f"{text[start : link.start]}{slot}{text[link.end : end]}"))
    if not LEAST <= len(sentence.split()) <= MOST or holds(sentence, base_title(source.passages[link.target].title)):
        return None
    return naming(source, link.source, sentence) or f"{source.name(link.source)}: {sentence}"


def _phrase(source: FactBase, link: Link) -> str | None:
    """Returns a few words around a link within its sentence, with the name replaced by ``[B]``; None if too few."""
    text = source.passages[link.source].text
    start, end = sentence_at(sentences(text), link.start)
    left, _, right = unlinked(f"{text[start : link.start]}[B]{text[link.end : end]}").partition("[B]")
    before, after = words(left)[-_BEFORE:], words(right)[:_AFTER]
    if len(before) < 2:
        return None
    phrase = tidy(f"{left[before[0].start :]}[B]{right[: after[-1].end] if after else ''}")
    return None if holds(phrase, base_title(source.passages[link.target].title)) else phrase


def naming(source: FactBase, page: int, sentence: str) -> str | None:
    """Returns a sentence that names its page, replacing a leading pronoun if needed; None if it has neither."""
    if holds(sentence, base_title(source.passages[page].title)):
        return sentence
    pronoun = _SUBJECTS.get(source.facts.kinds[page] or "")
    match = None if pronoun is None else pronoun.match(sentence)
    if match is None:
        return None
    suffix = "'s" if match[1] in ("His", "Her", "Its") else ""
    return f"{source.name(page)}{suffix}{sentence[match.end() :]}"


# -- parts of sentences --------------------------------------------------------------------------------------------


def draw_sentences(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields questions made from sentences by replacing a part with a question phrase.

    Args:
        source: Pages that may be asked about, and a pack with `Pack.spans`.
        hops: 1 for one page; 2 for a pair in which a relation leads from the first page to the second.
        rng: Random generator that draws the order, and one part of each sentence.
    """
    spans = [(source.pack.compiled(s.pattern, f"spans[{n}]"), s.ask) for n, s in enumerate(source.pack.spans)]
    if not spans:
        return
    pages = sorted(source.allowed)
    rng.shuffle(pages)
    for page in pages:
        if hops == 1:
            for text, answer in _questions(source, page, spans, rng):
                yield Draft(SENTENCE, text, answer, (page,))
        elif source.nameable(page):
            yield from _through(source, page, spans, rng)


def _through(source: FactBase, page: int, spans: Patterns, rng: random.Random) -> Iterator[Draft]:
    """Yields questions about the pages that a page's facts lead to; the question names only the first page."""
    for relation, fact in source.of_page[page].items() if page in source.of_page else ():
        phrases = source.pack.relations[relation]
        if not phrases.noun or fact.target is None or fact.target not in source.allowed:
            continue
        name, described = source.name(fact.target), phrases.noun.format(s=source.mention(page))
        title = base_title(source.passages[fact.target].title)
        for named, answer in _questions(source, fact.target, spans, rng):
            text = named.replace(title, described, 1)
            if text == named:
                continue
            steps = (
                Hop((phrases.ask or f"What is the {relation} of {{s}}?").format(s=source.mention(page)), name),
                Hop(named.replace(name, "#1", 1), answer),
            )
            text, pages = text[0].upper() + text[1:], (page, fact.target)
            yield Draft(SENTENCE, text, answer, pages, waypoints=(name,), relations=(relation,), steps=steps)


def _questions(source: FactBase, page: int, spans: Patterns, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yields (question, answer) for each of a page's first sentences that has a part to ask for."""
    passage = source.passages[page]
    title = base_title(passage.title)
    for start, end in sentences(passage.text)[:_FIRST]:
        unbracketed = re.sub(r"\s*\([^()]*\)", "", tidy(passage.text[start:end]))
        sentence = naming(source, page, unbracketed)
        if sentence is None or _PRONOUN.match(sentence) or not LEAST <= len(sentence.split()) <= MOST:
            continue
        parts = parts_of(sentence, spans, title)
        if not parts:
            continue
        start, end, ask = rng.choice(parts)
        answer = sentence[start:end]
        if norm(answer) in source.forbidden:
            continue
        rest = sentence[end:].rstrip(". ")
        if len(rest.split()) > _REST and not ask.startswith("how"):
            rest = ""
        text = f"{_ARTICLE.sub('', sentence[:start])}{ask}{rest}".rstrip(" ,;:.(")
        if text.count('"') % 2:
            before, _, after = text.rpartition('"')
            text = before + after
        yield f"{text[0].upper()}{text[1:]}?", answer


def parts_of(sentence: str, spans: Patterns, title: str) -> list[tuple[int, int, str]]:
    """Returns (start, end, question phrase) for each part of a sentence that can be asked for."""
    parts: list[tuple[int, int, str]] = []
    title_words = set(norm(title).split())
    for pattern, ask in spans:
        try:
            matches = list(pattern.finditer(sentence, timeout=SECONDS))
        except TimeoutError:
            continue
        for match in matches:
            start, end = match.span("object")
            words = norm(sentence[start:end]).split()
            overlaps = any(start < other_end and other < end for other, other_end, _ in parts)
            fits = bool(words) and len(words) <= _LONGEST_ANSWER and not title_words & set(words)
            if fits and not overlaps and is_whole(sentence, start, end):
                parts.append((start, end, ask))
    return parts


def is_whole(sentence: str, start: int, end: int) -> bool:
    """Returns whether a part of a sentence is a whole name, not a piece of a longer one."""
    return not _BEGUN.search(sentence, 0, start) and not _GOES_ON.match(sentence, end)
