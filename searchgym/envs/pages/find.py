"""Finding a plain text in a page: the windows of words around its occurrences."""

from __future__ import annotations

import re
from typing import Final

from searchgym.envs.pages.pages import Page, parts_of
from searchgym.protocol import count_markers
from searchgym.records import Opened
from searchgym.text import count_words, cut_words, skip_words

MAX_TEXT_CHARS: Final = 200
"""Maximum number of characters of a text to find or to cite."""
MOST_WINDOWS: Final = 5
"""Maximum number of occurrences that are shown."""


def occurrences(text: str, page: str) -> list[tuple[int, int]]:
    """Returns (start, end) in characters of each occurrence of a text, ignoring case and the width of white space."""
    pattern = r"\s+".join(map(re.escape, text.split()))
    return [match.span() for match in re.finditer(pattern, page, re.IGNORECASE)] if pattern else []


def find_in(text: str, turn: int, page: Page, words: int) -> tuple[Opened, str]:
    """Finds a text in a page.

    Args:
        text: The text.
        turn: 1-based turn of the action.
        page: The page that was opened last.
        words: Maximum number of words to show, which the first `MOST_WINDOWS` occurrences share equally.

    Returns:
        The record, and the text to show: each occurrence amid its neighbouring words, with the number of its part.
    """
    if len(text) > MAX_TEXT_CHARS:
        return Opened(turn, "", text=text[:MAX_TEXT_CHARS]), (
            f"A text to find has at most {MAX_TEXT_CHARS} characters, this one has {len(text)}."
        )
    spans = occurrences(text, page.text)
    if not spans:
        return Opened(turn, "", text=text), f"The page {page.title:.200} does not hold that text: {text}"
    width = max(words // min(len(spans), MOST_WINDOWS), 1)
    windows: list[str] = []
    parts: list[int] = []
    for start, _ in spans[:MOST_WINDOWS]:
        before = count_words(page.text[:start])
        parts.append(before // words + 1)
        windows.append(
            f"[part {parts[-1]}] ... {cut_words(skip_words(page.text, max(before - width // 2, 0)), width)} ..."
        )
    whole = parts_of(page.text, words)
    heading = f"Page(Title: {page.title:.200}, {whole} parts) holds the text {len(spans)} times"
    limit = "" if len(spans) <= MOST_WINDOWS else f", the first {MOST_WINDOWS} are shown"
    body = "\n".join(windows)
    record = Opened(turn, "", page.title, page.position, parts[0], whole, count_markers(body), text, len(spans))
    return record, f"{heading}{limit}:\n{body}"
