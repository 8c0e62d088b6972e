"""Layout of tables as plain text that fits a width: no number and no label is ever cut."""

from __future__ import annotations

import itertools
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

PROSE: Final = 24
"""Width from which a column of words may be wrapped, and to which at least it is wrapped."""
SIDE_BY_SIDE: Final = 4
"""Maximum number of rows that become columns where a table is too wide."""
GAP: Final = "  "
MORE: Final = " ..."
"""End of a line that is cut."""


def laid_out(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns the lines of a table.

    Where it is too wide, it is changed in this order, until it fits: columns without any content are left out; columns
    of words are wrapped; few rows become columns; each row becomes a block with a line per column. Only a single word
    can be wider than `width` then.

    Args:
        head: Names of the columns; without any name, the table has no line of names.
        rows: Cells of each row; a cell may have several lines.
        width: Width in characters of a terminal.
    """
    grid = [list(head), *map(list, rows)]
    if not fits(_widths(grid), width):
        filled = [number for number in range(len(head)) if any(row[number] for row in rows)]
        grid = [[row[number] for number in filled] for row in grid]
    widths = _wrapped_widths(grid, width)
    if fits(widths, width) or not any(head):
        return _drawn(grid, widths)
    if len(rows) <= SIDE_BY_SIDE:
        turned = [list(row) for row in zip(*grid, strict=True)]
        widths = _wrapped_widths(turned, width)
        if fits(widths, width):
            return _drawn(turned, widths)
    return _blocks(grid, width)


def fits(widths: Sequence[int], width: int) -> bool:
    """Returns whether columns with gaps between them are at most as wide as a line."""
    return sum(widths) + len(GAP) * (len(widths) - 1) <= width


def width_of(text: str) -> int:
    """Returns the number of terminal columns that a line of text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )


def cut_to(text: str, width: int) -> str:
    """Returns a text as one line of at most `width` columns, cut between words unless that would leave little of it."""
    line = "".join(" " if letter.isspace() else letter for letter in text)
    if width_of(line) <= width:
        return line
    room = max(width - len(MORE), 1)
    end = next(end for end in range(len(line)) if width_of(line[: end + 1]) > room)
    whole = line[: end + 1].rpartition(" ")[0].rstrip()
    return (whole if width_of(whole) > room // 2 else line[:end]) + MORE


def _widths(grid: Sequence[Sequence[str]]) -> list[int]:
    """Returns the widths of the columns of a table."""
    lines = [[cell.split("\n") for cell in row] for row in grid]
    return [max(width_of(line) for cell in column for line in cell) for column in zip(*lines, strict=True)]


def _wrapped_widths(grid: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the widths of the columns, of which the widest of words are made narrower as far as needed."""
    widths = _widths(grid)
    least = [
        min(column, max(PROSE, max(width_of(word) for cell in cells for word in cell.split() or [""])))
        if any(" " in cell for cell in cells)
        else column
        for column, cells in zip(widths, zip(*grid, strict=True), strict=True)
    ]
    while not fits(widths, width):
        spare = [column - smallest for column, smallest in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widest = max((column, number) for number, column in enumerate(widths) if spare[number])[1]
        widths[widest] -= 1
    return widths


def _drawn(grid: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Returns the lines of a table with columns of these widths; columns of numbers are aligned to the right."""
    right = [all(map(is_number, column[1:])) for column in zip(*grid, strict=True)]
    lines = []
    for number, row in enumerate(grid):
        if number or any(row):
            cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
            for parts in itertools.zip_longest(*cells, fillvalue=""):
                padded = [
                    (" " * (width - width_of(part)) + part) if flush else part + " " * (width - width_of(part))
                    for part, width, flush in zip(parts, widths, right, strict=True)
                ]
                lines.append(GAP.join(padded).rstrip())
        if not number and any(row):
            lines.append(GAP.join("-" * width for width in widths))
    return lines


def _blocks(grid: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns each row as a block: its first cell, and under it a line for each other cell that has content."""
    (_, *names), *rows = grid
    label, lines = max(map(width_of, names), default=0), list[str]()
    for first, *cells in rows:
        lines += _wrapped(first, width)
        for name, cell in zip(names, cells, strict=True):
            if cell:
                start = f"{GAP}{name}{' ' * (label - width_of(name))}{GAP}"
                parts = _wrapped(cell, max(width - len(GAP) * 2 - label, 1))
                lines += [(" " * width_of(start) if number else start) + part for number, part in enumerate(parts)]
    return lines


def _wrapped(cell: str, width: int) -> list[str]:
    """Returns the lines of a cell, wrapped between words."""
    lines = []
    for line in cell.split("\n"):
        if width_of(line) <= width:
            lines.append(line)
        else:
            letters = max(width * len(line) // width_of(line), 1)
            lines += textwrap.wrap(line, letters, break_long_words=False, break_on_hyphens=False)
    return lines


def is_number(cell: str) -> bool:
    """Returns whether a cell holds a number, an interval of two, a gap, or nothing."""
    return cell.translate(_NOT_DIGITS).replace("n/a", "0").isdigit() or not cell


_NOT_DIGITS: Final = str.maketrans("", "", " +-.,%–")
