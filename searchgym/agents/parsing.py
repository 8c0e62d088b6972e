"""Tools for the parsers of team roles, which accept one exact form and fall back to a default otherwise.

A parser receives the whole text of a model and returns a `Parsed`: the value that the workflow uses, and whether
the text was legal for the role. Thoughts are ignored (a model may reason first); everything else counts.
Parsers raise no exceptions and run in time linear in the length of the text.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from searchgym.protocol import MAX_ACTION_CHARS, split_thoughts

Value = TypeVar("Value")
NONE: Final = "none"
"""Text shown in a prompt for an empty field."""
LINE: Final = 200
"""Maximum length in characters of a line that a parser uses as a fallback."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[Value]):
    """Parsed output of a role."""

    value: Value
    """Value for the workflow to use."""
    legal: bool
    """Whether the output had the exact form that the role must write; if not, `value` is a fallback."""


def without_thoughts(text: str) -> str:
    """Returns a model's text without thoughts and outer whitespace; over-long text is truncated."""
    return split_thoughts(text[:MAX_ACTION_CHARS])[1].strip()


def only_tag(text: str, tag: str) -> str | None:
    """Returns the content of a tag if the text is exactly that tag, otherwise None.

    Args:
        text: Output of a role, as `without_thoughts` returns it.
        tag: Name of the tag.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
        return None
    body = text[len(opening) : -len(closing)]
    return None if opening in body or closing in body else body.strip()


def first_line(text: str, limit: int = LINE) -> str:
    """Returns the first non-empty line without tags, truncated to `limit` characters."""
    bare = re.sub(r"</?\w{1,20}>", " ", text[: 100 * limit])
    line = next((line.strip() for line in bare.splitlines() if line.strip()), "")
    return line[:limit].strip()


def bare_query(text: str) -> str:
    """Returns the first non-empty line without surrounding punctuation, as a fallback query."""
    return first_line(text).strip(string.punctuation + string.whitespace)


def numbered(text: str, tags: tuple[str, ...], most: int) -> tuple[list[tuple[str, int, str]], str]:
    """Extracts numbered tags (``<q1>..</q1>``) from a text.

    Args:
        text: Output of a role, as `without_thoughts` returns it.
        tags: Names of the tags without their numbers.
        most: Largest number, at most 9.

    Returns:
        A list of (name, number, content) in order of occurrence; the rest of the text, stripped.
    """
    pattern = re.compile(rf"<({'|'.join(tags)})([1-{most}])>((?:(?!</?(?:{'|'.join(tags)})\d+>).)*)</\1\2>", re.DOTALL)
    contents = [(match[1], int(match[2]), match[3].strip()) for match in pattern.finditer(text)]
    return contents, pattern.sub("", text).strip()


def words(text: str) -> int:
    """Returns the number of whitespace-separated words in a text."""
    return len(text.split())


def same(text: str) -> str:
    """Returns the normal form used to compare questions: case-folded, with whitespace collapsed."""
    return " ".join(text.casefold().split())
