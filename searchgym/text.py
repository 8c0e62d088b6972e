"""Small readers of prose: words, sentences, names of pages, and the noun that says what a page is about."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])\w)+")
"""Matches a word. Chinese and Japanese have no spaces between words: each of their characters counts as one."""
_SENTENCE_END: Final = re.compile(r"(?<=[\w)\"”\]%][.!?])[\"”]?\s+(?=[\"“(]?[^\W\d_a-z])|(?<=[。！？])|\n[ \t]*\n")
"""Matches what stands between two sentences."""
_ABBREVIATION: Final = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|c|ca|No|Col|Gen|Lt|Capt|Sgt|Rev|Prof|Inc|Co|[A-Z])\.$"
)
"""Matches a full stop that does not end a sentence."""
_LONGEST: Final = 6
"""Characters that an abbreviation has at most, so that no long text is searched for one."""
_IS_A: Final = re.compile(r"\b(?:is|was|were|are|[–-])\s+(?:an?|the)\s+(?:only\s+|co-)?")
_PHRASE_END: Final = re.compile(
    r"\b(?:by|directed|written|of|starring|who|that|which|in|from|based|about|for|with|at|on|released|produced|set"
    r"|recorded|published|composed|performed|filmed|shot|sung|played|co-\w+|located|made|whose|where|to|as|known|best|born|featuring|distributed|created|adapted|under|loosely)\b"
    r'|\band\s+(?:the|an?|his|her|its|was|is|has|had)\b|[,.;:()"“”]'
)
"""Matches the end of the noun phrase behind "is a"."""


_LINK: Final = re.compile(r"\[([^\[\]\n]*+)\]\(([^)\s\[]*+)\)")
"""Matches a link of Markdown; it does not go beyond the next bracket, so that the time is linear."""


class Word(NamedTuple):
    """A word of a text with its place."""

    text: str
    start: int
    """Position of the first character."""
    end: int
    """Position behind the last character."""


def words(text: str) -> list[Word]:
    """Returns the words of a text."""
    return [Word(match[0], match.start(), match.end()) for match in WORD.finditer(text)]


def norm(text: str) -> str:
    """Returns the words of a text in lower case with single spaces, for comparisons of names."""
    return " ".join(WORD.findall(unicodedata.normalize("NFC", text).lower()))


def holds(text: str, name: str) -> bool:
    """Returns whether a text has a name as consecutive words, whatever their case; an empty name is nowhere."""
    wanted = norm(name)
    return bool(wanted) and f" {wanted} " in f" {norm(text)} "


def base_title(title: str) -> str:
    """Returns a title without the brackets at its end, which tell namesakes apart."""
    return re.sub(r"(?<!\s)\s*+\([^()]*+\)\s*+$", "", title).strip() or title.strip()


def sentences(text: str) -> list[tuple[int, int]]:
    """Returns the places (start, end) of the sentences of a text; an empty text has one, which is empty."""
    places, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, match.start() - _LONGEST), match.start()):
            places.append((start, match.start()))
            start = match.end()
    return [*places, (start, len(text))]


def sentence_at(places: Sequence[tuple[int, int]], position: int) -> tuple[int, int]:
    """Returns the sentence in which a position lies, the last one if none."""
    return next((place for place in places if place[0] <= position <= place[1]), places[-1])


def head_noun(text: str) -> str:
    """Returns what the first "is a ..." of a text says that its subject is, in lower case: ``film``, ``actor``.

    It is the last word of the noun phrase: "a film director" is a director, "a film and theatre actor" an actor. The
    empty string if there is none.
    """
    match = _IS_A.search(text, 0, 400)
    if match is None:
        return ""
    rest = text[match.end() : match.end() + 160]
    stop = _PHRASE_END.search(rest)
    found = re.findall(r"[\w'-]+", rest[: stop.start()] if stop else rest)
    return found[-1].lower() if found else ""


def unlinked(text: str) -> str:
    """Returns a text with Markdown's links to files and sites replaced by their texts."""

    def shown(link: re.Match[str]) -> str:
        file = link[2].partition("#")[0].endswith((".md", ".html", ".txt"))
        return link[1] if file or link[2].startswith(("http:", "https:")) else link[0]

    return _LINK.sub(shown, text)


def tidy(text: str) -> str:
    """Returns a text with the spacing mended that tokenised corpora break: ``Jean- Luc``, ``John( 1 May``, ``x ,``."""
    text = re.sub(r"(?<=\w)- (?=\w)", "-", text)
    text = re.sub(r"(?<=\w)\(\s*", " (", re.sub(r"\(\s+", "(", text))
    text = re.sub(r"(?<!\s)\s++([,.;:)])", r"\1", text)
    return " ".join(re.sub(r"(?<=\w)(['’]) s\b", r"\1s", text).split())
