"""A page as Markdown, without its figures and episodes."""

from __future__ import annotations

import html
import re
from typing import Final

from searchgym.eval.report.blocks import Block, Code, Heading, Inline, Items, ReportPage, Table, TextBlock

MARKUP: Final = re.compile(r"([\\`*_\[\]|~$])")
"""Characters that Markdown may read as markup within a line."""


def to_markdown(page: ReportPage) -> str:
    """Returns a page as Markdown; its figures and the episodes to read are left out."""
    blocks = [f"# {escaped(page.title)}", *filter(None, map(_block, page.blocks))]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Returns the text on one line, escaped so that Markdown and HTML show it literally."""
    return MARKUP.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _block(block: Block) -> str:
    """Returns one block, empty if it has no form in Markdown."""
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escaped(block.text)}"
    if isinstance(block, TextBlock):
        return _inline(block.parts)
    if isinstance(block, Items):
        return "\n".join(f"- {f'**{escaped(term)}** ' if term else ''}{_inline(parts)}" for term, parts in block.items)
    if isinstance(block, Table):
        head, *rows = [f"| {' | '.join(map(escaped, row))} |" for row in (block.head, *block.rows)]
        return "\n".join([head, "|" + "---|" * len(block.head), *rows])
    return ""


def _inline(parts: Inline) -> str:
    """Returns a paragraph; runs of white space become one space, and backticks within code are removed."""
    rendered = []
    for part in parts:
        if isinstance(part, Code):
            rendered.append(f"`{' '.join(part.text.replace('`', '').split())}`")
        else:
            rendered.append(f"{' ' * part[:1].isspace()}{escaped(part)}{' ' * part[-1:].isspace()}")
    return "".join(rendered)
