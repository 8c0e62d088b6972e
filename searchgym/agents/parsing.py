"""What the roles of a team may write, and what becomes of the rest: one small parser per form.

A parser gets all that a model wrote and returns a `Parsed`: what the workflow goes on with, and whether the role was
allowed to write that. Closed ``<think>`` blocks are passed over (a model that reasons first breaks no rule); all else
counts. No parser raises, each is linear in the length of the text.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from searchgym.protocol import MAX_ACTION_CHARS, split_thoughts

Value = TypeVar("Value")
LINE: Final = 200
"""Characters of the line that a fall-back takes."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[Value]):
    """What a role's output came to."""

    value: Value
    legal: bool
    """False if the role may not write that; `value` is then its fall-back."""


def said(text: str) -> str:
    """Returns what counts of a model's text: thoughts and outer blanks apart, and no more than is ever read."""
    return split_thoughts(text[:MAX_ACTION_CHARS])[1].strip()


def only_tag(text: str, tag: str) -> str | None:
    """Returns what stands in a tag, if the text is that tag once and nothing else; None otherwise.

    Args:
        text: What counts; see `said`.
        tag: Its name.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
        return None
    body = text[len(opening) : -len(closing)]
    return None if opening in body or closing in body else body.strip()


def first_line(text: str, limit: int = LINE) -> str:
    """Returns the first line that holds anything, tags taken off, cut to `limit` characters."""
    bare = re.sub(r"</?\w{1,20}>", " ", text[: 100 * limit])
    line = next((line.strip() for line in bare.splitlines() if line.strip()), "")
    return line[:limit].strip()


def bare_query(text: str) -> str:
    """Returns the first line without punctuation around it: a query out of something that is none."""
    return first_line(text).strip(string.punctuation + string.whitespace)


def numbered(text: str, tags: tuple[str, ...], most: int) -> tuple[list[tuple[str, int, str]], str]:
    """Takes numbered tags (``<q1>..</q1>``) out of a text.

    Args:
        text: What counts.
        tags: Names without their numbers.
        most: Largest number.

    Returns:
        (name, number, body) of each in order; what stands between and around them, blanks removed.
    """
    pattern = re.compile(rf"<({'|'.join(tags)})([1-{most}])>((?:(?!</?(?:{'|'.join(tags)})\d+>).)*)</\1\2>", re.DOTALL)
    found = [(match[1], int(match[2]), match[3].strip()) for match in pattern.finditer(text)]
    return found, pattern.sub("", text).strip()


def words(text: str) -> int:
    """Returns how many words a text has."""
    return len(text.split())


def same(text: str) -> str:
    """Returns the form under which two texts are the same question: case and blanks aside."""
    return " ".join(text.casefold().split())
