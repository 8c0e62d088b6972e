"""Building blocks of a page: plain data without markup, which `to_html` and `to_markdown` render.

Every text in a block is shown literally: no text of a run, a model or a submission is read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_OUTCOMES: Final = 6
"""Maximum number of sentences at the top of a page."""


@dataclass(frozen=True, slots=True)
class Code:
    """Text that is set as code within a line."""

    text: str


Inline = Sequence[str | Code]
"""Parts of a paragraph in order."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading of a section."""

    text: str
    level: int = 2
    """2 for a section, 3 for a section within one."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """One paragraph."""

    parts: Inline


@dataclass(frozen=True, slots=True)
class Items:
    """List of paragraphs, each with a term in bold before it or with none (``""``)."""

    items: Sequence[tuple[str, Inline]]


@dataclass(frozen=True, slots=True)
class Table:
    """Table of text cells; a column whose cells all begin with a digit or sign is right-aligned in HTML.

    On a narrow screen the column of names stays in sight: the first one, or the second one after a column ``#``.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """Figure in two colourings; pages in Markdown leave it out."""

    light: bytes
    """SVG for a light background."""
    dark: bytes
    """SVG for a dark background."""
    alt: str
    """Text that describes the figure, for programs that do not display images."""
    caption: str


@dataclass(frozen=True, slots=True)
class ShownHit:
    """One hit of a search as a reader sees it."""

    title: str
    score: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One output of a model or one search of an episode."""

    label: str
    """Turn, and who did what in it."""
    text: str
    """Output of the model, or the query."""
    hits: Sequence[ShownHit] | None = None
    """Hits of a search; None for an output."""


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """One episode to read."""

    id: str
    question: str
    golds: Sequence[str]
    """Gold answers; empty if the run does not tell them."""
    answer: str | None
    right: bool | None
    """Whether the answer is an exact match; None if it has no score."""
    facts: Sequence[tuple[str, str]]
    """What the episode cost and how it ended, by name."""
    steps: Sequence[ShownStep]


@dataclass(frozen=True, slots=True)
class Reading:
    """Episodes to read, each folded to one line; pages in Markdown leave them out."""

    episodes: Sequence[ShownEpisode]


Block = Heading | TextBlock | Items | Table | Picture | Reading


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A page: its title and its blocks in order."""

    title: str
    blocks: Sequence[Block]


def items_of(text: str) -> Items:
    """Returns the items of a text with one item a line: its term, ``|``, a paragraph with code between backticks."""
    items: list[tuple[str, Inline]] = []
    for line in text.strip().splitlines():
        term, _, paragraph = line.partition(" | ")
        parts = paragraph.split("`")
        items.append((term, [Code(part) if number % 2 else part for number, part in enumerate(parts)]))
    return Items(items)


def outcomes(sentences: Sequence[str]) -> list[Block]:
    """Returns the opening of a page, one sentence for each result; empty sentences are left out."""
    sentences = list(filter(None, sentences))
    more = len(sentences) - MOST_OUTCOMES
    items = [("", [text]) for text in sentences[:MOST_OUTCOMES]]
    if more > 0:
        items.append(("", [f"{more} more below."]))
    return [TextBlock(items[0][1])] if len(items) == 1 else [Items(items)] if items else []


def filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Returns a table without the columns in which every cell is empty."""
    columns = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return Table([head[column] for column in columns], [[row[column] for column in columns] for row in rows])


def finite(value: object) -> float | None:
    """Returns the value as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def number(value: object, digits: int = 3) -> str:
    """Formats a score for a cell; empty if it was not measured or is not a finite number."""
    score = finite(value)
    return "" if score is None else f"{score:.{digits}f}"


def between(bounds: object, digits: int = 3) -> str:
    """Formats an interval for a cell; empty if it is not one."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return ""
    low, high = (number(bound, digits) for bound in bounds)
    return f"{low} to {high}" if low and high else ""
