"""Reads HTML: the title and the visible text, block by block, in linear time.

The page is split into tags and text as in browsers: a tag, comment or quoted value that is never closed extends to the
end of the page. The patterns never backtrack.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Final

from searchgym.corpora.readers.document import LONGEST_TITLE, Document

# fmt: off
INLINE: Final = frozenset((
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd", "mark", "q", "s",
    "samp", "small", "span", "strong", "sub", "sup", "time", "u", "var",
))
"""Inline tags, which do not end a block of text."""
# fmt: on
HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
HIDDEN: Final = frozenset(("script", "style"))
_WHOLE: Final = {name: re.compile(rf"</{name}(?![\w-])", re.IGNORECASE) for name in (*HIDDEN, "title")}
"""Patterns of the closing tags of elements in which other tags are ignored."""
_TAG: Final = re.compile(
    r"""<!--(?:-?>|(?:[^-]++|-(?!->))*+(?:-->|\Z))"""
    r"""|<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?:[^>=]++|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?)*+(?:>|\Z)"""
    r"""|<[!?/][^>]*+(?:>|\Z)""",
    re.DOTALL,
)
"""Matches a comment, a tag (groups ``end`` and ``name``) or a declaration."""
_HUGE: Final = re.compile(r"&#\d{8,}+;?")
"""Matches a numeric character reference that is too large for any character."""


def read_html(content: str) -> Document:
    """Returns the title and the text of an HTML page, its blocks as paragraphs."""
    title, blocks = "", []
    for text, tag in _blocks(content):
        if tag == "title":
            title = title or text[:LONGEST_TITLE]
        elif tag not in HIDDEN:
            blocks.append((text, tag in HEADINGS and len(text) <= LONGEST_TITLE))
    title = title or next((text for text, is_heading in blocks if is_heading), "")
    if blocks and blocks[0] == (title, True):
        blocks = blocks[1:]
    return Document(title, "\n\n".join(text for text, _ in blocks))


def _blocks(content: str) -> Iterator[tuple[str, str]]:
    """Yields blocks in page order: text with white space collapsed, and the heading, title or hidden tag around it."""
    pieces: list[str] = []
    inside, at = "", 0
    for name, end, start, next_at in _tags(content):
        pieces.append(content[at:start])
        at = next_at
        if name in INLINE:
            continue
        if text := _text(pieces):
            yield text, inside
        pieces.clear()
        if end:
            inside = "" if name == inside else inside
        elif name == "title" or name in HEADINGS or name in HIDDEN:
            inside = name
    pieces.append(content[at:])
    if text := _text(pieces):
        yield text, inside


def _tags(content: str) -> Iterator[tuple[str, bool, int, int]]:
    """Yields (lower-case name, ``a`` for comments; whether it is a closing tag; start; end) of each tag of a page."""
    at = 0
    while tag := _TAG.search(content, at):
        name, at = (tag["name"] or "a").lower(), tag.end()
        yield name, bool(tag["end"]), tag.start(), at
        if name in _WHOLE and not tag["end"]:
            closing = _WHOLE[name].search(content, at)
            at = closing.start() if closing else len(content)


def _text(pieces: list[str]) -> str:
    """Returns the plain text of pieces of the page's source."""
    return " ".join(html.unescape(_HUGE.sub("\N{REPLACEMENT CHARACTER}", "".join(pieces))).split())
