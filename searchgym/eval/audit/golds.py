"""Gold pages of questions, and the forms in which words and titles are compared with a corpus."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.records import Question, title_key
from searchgym.text import WORD, base_title

_ACCENTS: Final = re.compile(r"[\u0300-\u036f]")
"""Matches the accents of letters in decomposed form."""


@dataclass(frozen=True, slots=True)
class GoldPage:
    """One gold page of a question, with the text that the question's own context gives for it."""

    title: str
    """Title as the question gives it."""
    text: str | None = None
    """Text of the gold paragraph; None if the question brings no text, so that only the title can be compared."""
    sentences: tuple[str, ...] = ()
    """All sentences of the paragraph, which together are its text."""
    needed: tuple[int, ...] = ()
    """Numbers of the gold sentences, from 0; empty if the data name none: then the whole text is needed."""


def plain_words(text: str) -> list[str]:
    """Returns the words of a text without case, accents, punctuation and HTML escapes."""
    if "&" in text:
        text = html.unescape(text)
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
        return WORD.findall(unicodedata.normalize("NFC", text).casefold())
    return _ASCII_WORD.findall(text.lower())


_ASCII_WORD: Final = re.compile(r"\w+")
"""Matches what `WORD` matches in ASCII text, three times faster."""


def fold_title(title: str) -> str:
    """Returns a title without a bracket at its end, case, accents and punctuation; "" if nothing else is left."""
    return " ".join(plain_words(base_title(title).replace("_", " ")))


def spelled_alike(first: str, second: str) -> bool:
    """Checks whether two titles may name one page: equal when folded, without two brackets that differ."""
    if not (fold := fold_title(first)) or fold != fold_title(second):
        return False
    brackets = [plain_words(title)[len(fold.split()) :] for title in (first, second)]
    return not all(brackets) or brackets[0] == brackets[1]


def gold_pages_of(question: Question) -> tuple[list[GoldPage], list[str]]:
    """Returns the gold pages of a question, and the faults of its gold data.

    Returns:
        One page for each gold paragraph, and one without text for each gold title without a paragraph; and sentences
        such as ``"gold page 'X' has no text"``.
    """
    faults: list[str] = []
    pages: list[GoldPage] = []
    with_text: set[str] = set()
    facts: dict[str, list[int | None]] = {}
    for fact in question.supporting_facts or ():
        facts.setdefault(title_key(fact.title), []).append(fact.sentence)
    for paragraph in question.paragraphs or ():
        key = title_key(paragraph.title)
        if not (paragraph.supporting or key in facts):
            continue
        if not plain_words(paragraph.text):
            faults.append(f"gold page {paragraph.title!r} has no text")
            continue
        with_text.add(key)
        numbers = sorted({number for number in facts.get(key, ()) if number is not None})
        inside = tuple(number for number in numbers if 0 <= number < len(paragraph.sentences))
        if outside := [number for number in numbers if number not in inside]:
            faults.append(f"gold page {paragraph.title!r} has no sentence {outside[0]}")
        needed = () if None in facts.get(key, ()) else inside
        pages.append(GoldPage(paragraph.title, paragraph.text, paragraph.sentences, needed))
    titles = question.gold_titles or ()
    pages += [GoldPage(title) for title in titles if title_key(title) not in with_text]
    return list(dict.fromkeys(pages)), faults


def sentence_spans(page: GoldPage) -> Sequence[tuple[int, int]]:
    """Returns the words (first, after the last) of each gold sentence in the page's text; of all if none is named."""
    counts = [len(plain_words(sentence)) for sentence in page.sentences]
    total = len(plain_words(page.text or ""))
    if not page.needed or sum(counts) != total:
        return [(0, total)]
    return [(sum(counts[:number]), sum(counts[: number + 1])) for number in page.needed if counts[number]]
