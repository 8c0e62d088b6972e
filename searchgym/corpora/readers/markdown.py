"""Reads Markdown: the title and the text without marks, and the links, in linear time.

The text is that of the rendered page: links and images are replaced by their words, emphasis marks are removed, the
cells of a table row are joined by ``; ``, and code is unchanged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from searchgym.corpora.readers.document import LONGEST_TITLE, Document
from searchgym.corpora.readers.html import read_html
from searchgym.errors import CardError
from searchgym.options.yaml import parse_yaml

FRONT_MATTER: Final = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
"""Matches a block of YAML between lines of dashes at the start of a Markdown file."""
PART: Final = 1 << 17
"""Maximum number of characters parsed at once: the parser takes a thousand bytes of memory for some characters. A
longer text is split at a blank line or heading, if there is one."""

DEEPEST: Final = 40
"""Maximum depth of nested lists and quotations; a deeper part of the text is left as it is, unrendered."""
_PARSER: Final = MarkdownIt("commonmark", {"maxNesting": DEEPEST}).enable(["table", "strikethrough"])


@dataclass(slots=True)
class _Block:
    """A paragraph, heading, item of a list, row of a table or piece of code."""

    text: str
    links: list[tuple[int, int, str]]
    heading: bool = False
    close: bool = False
    """Whether the block follows the previous one without a blank line."""


def read_markdown(content: str) -> Document:
    """Returns the title, text and links of a Markdown document.

    The title is the front matter's ``title``, else the first heading; an opening heading that became the title is left
    out of the text.
    """
    matter = FRONT_MATTER.match(content)
    title = ""
    if matter is not None:
        fields, rest = None, content[matter.end() :]
        with contextlib.suppress(CardError):
            fields = parse_yaml(matter.group(1), "front matter")
        if isinstance(fields, dict):
            content, title = rest, str(fields.get("title") or "").strip()[:LONGEST_TITLE]
        else:  # three dashes may also be a horizontal rule
            content = f"{matter.group(1)}\n\n{rest}"
    blocks = [block for block in _blocks(content) if block.text]
    heading = next((block.text for block in blocks if block.heading), "")
    if blocks and blocks[0].heading and title in ("", heading):
        blocks = blocks[1:]
    text, links = _joined(blocks)
    return Document(title or heading, text, tuple(links))


def _joined(blocks: Sequence[_Block], between: str | None = None) -> tuple[str, list[tuple[int, int, str]]]:
    """Joins blocks and returns their text and links; the default separator is a line break or a blank line."""
    pieces: list[str] = []
    links: list[tuple[int, int, str]] = []
    at = 0
    for block in blocks:
        if pieces:
            pieces.append(between if between is not None else "\n" if block.close else "\n\n")
            at += len(pieces[-1])
        links += [(at + start, at + end, address) for start, end, address in block.links]
        pieces.append(block.text)
        at += len(block.text)
    return "".join(pieces), links


def _blocks(content: str) -> Iterator[_Block]:
    """Yields the blocks of a text."""
    env: dict[str, Any] = {}  # link addresses that are defined elsewhere in the text
    at = 0
    while at < len(content):
        end = at + PART
        if end < len(content):
            end = max(content.rfind("\n\n", at + 1, end), content.rfind("\n#", at + 1, end)) + 1
            end = end or content.rfind("\n", at, at + PART) + 1 or at + PART
        tokens = _PARSER.parse(content[at:end], env)
        if any(token.level >= DEEPEST - 1 for token in tokens):  # the parser drops deeper levels
            yield _Block(content[at:end].strip("\n"), [])
        else:
            yield from _rendered(tokens)
        at = end


def _rendered(tokens: Sequence[Token]) -> Iterator[_Block]:
    """Yields the blocks of a parsed text."""
    numbers: list[int | None] = []  # next item number of each open list; None for bullets
    marker = ""  # marker of the item that begins
    cells: list[_Block] | None = None  # cells of the current table row
    heading = hidden = False
    close = False  # whether the next item or row follows one of the same list or table
    for token in tokens:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                close = close and bool(numbers)
                numbers.append(int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None)
            case "bullet_list_close" | "ordered_list_close":
                numbers.pop()
            case "list_item_open" | "list_item_close":
                marker = _marker(numbers) if token.nesting > 0 else ""
            case "heading_open" | "heading_close":
                heading = token.nesting > 0
            case "paragraph_open":
                hidden = token.hidden  # as in a list whose items have no blank lines between them
            case "table_open":
                close = False
            case "tr_open":
                cells = []
            case "tr_close":
                yield _Block(*_joined([cell for cell in cells or () if cell.text], "; "), close=close)
                cells, close = None, True
            case "inline" if cells is not None:
                cells.append(_block(token))
            case "inline" | "fence" | "code_block" | "html_block":
                block = _Block(*_joined([_Block(marker, []), _block(token)], ""), close=hidden and close)
                block.heading = heading and len(block.text) <= LONGEST_TITLE
                yield block
                marker, close, hidden = "", hidden, False


def _marker(numbers: list[int | None]) -> str:
    """Returns the marker of the next item of the innermost list, and advances its number."""
    number = numbers[-1]
    numbers[-1] = None if number is None else number + 1
    return "  " * (len(numbers) - 1) + ("- " if number is None else f"{number}. ")


def _block(token: Token) -> _Block:
    """Returns the block of a token that has text."""
    if token.type == "inline":
        return _Block(*_inline(token.children or ()))
    return _Block(read_html(token.content).text if token.type == "html_block" else token.content.strip("\n"), [])


def _inline(tokens: Sequence[Token]) -> tuple[str, list[tuple[int, int, str]]]:
    """Returns the text of a paragraph and its links."""
    pieces: list[str] = []
    links: list[tuple[int, int, str]] = []
    opened: list[tuple[int, str]] = []
    at = 0
    for token in tokens:
        if token.type == "link_open":
            opened.append((at, str(token.attrs.get("href", ""))))
        elif token.type == "link_close" and opened:
            start, address = opened.pop()
            links.append((start, at, address))
        pieces.append(_words(token))
        at += len(pieces[-1])
    return "".join(pieces), links


def _words(token: Token) -> str:
    """Returns the visible text of a token inside a paragraph."""
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    if token.type == "image":
        return _inline(token.children or ())[0]
    if token.type == "html_inline":
        return "\n" if token.content.lower().startswith("<br") else ""
    return token.content
