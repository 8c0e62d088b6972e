"""A page as Markdown, without its figures and episodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from searchgym.eval.report.blocks import Block, Code, Heading, Inline, Items, ReportPage, Table, TextBlock

MARKUP: Final = re.compile(r"([\\`*_\[\]|~$])")
"""Characters that Markdown may read as markup within a line."""


def to_markdown(page: ReportPage) -> str:
    """Returns a page as Markdown; its figures and the episodes to read are left out."""
    blocks = [f"# {escaped(page.title)}", *filter(None, map(_block, page.blocks))]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Returns text that Markdown and HTML show as it is, on one line."""
    flat = " ".join(text.split())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        flat = flat.replace(character, name)
    return MARKUP.sub(r"\\\1", flat)


def _block(block: Block) -> str:
    """Returns one block, empty if it has no form in Markdown."""
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escaped(block.text)}"
    if isinstance(block, TextBlock):
        return _inline(block.parts)
    if isinstance(block, Items):
        return "\n".join(f"- {f'**{escaped(term)}** ' if term else ''}{_inline(parts)}" for term, parts in block.items)
    if isinstance(block, Table):
        return "\n".join(_table(block.head, block.rows))
    return ""


def _inline(parts: Inline) -> str:
    """Returns a paragraph; a part keeps the spaces at its ends, and code loses its backticks."""
    return "".join(
        f"`{' '.join(part.text.replace('`', '').split())}`" if isinstance(part, Code) else _spaced(part)
        for part in parts
    )


def _spaced(part: str) -> str:
    """Returns escaped text with one space at either end where it had any."""
    return f"{' ' * part[:1].isspace()}{escaped(part)}{' ' * part[-1:].isspace()}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table."""
    yield "| " + " | ".join(map(escaped, head)) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(escaped, row)) + " |"
