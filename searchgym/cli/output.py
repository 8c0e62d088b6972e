"""What commands print: tables for people, one JSON object for programs, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def say(text: str) -> None:
    """Prints a line for people on standard error."""
    print(text, file=sys.stderr)  # noqa: T201


def show(value: Any) -> str:
    """Formats a value of a table: n/a for None, four decimals for floats."""
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return "\n".join(f"{name}: {show(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(show(item) for item in value)
    return str(value)


def emit(content: Mapping[str, Any], as_json: bool, title: str = "") -> None:
    """Prints names and values: a table of two columns, or the object as JSON."""
    if as_json:
        print(json.dumps(content, ensure_ascii=False))  # noqa: T201
    else:
        table(("", ""), [(name, show(value)) for name, value in content.items()], title)


def emit_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, name: str, title: str = "") -> None:
    """Prints rows with the same keys: a table, or ``{name: [row, ...]}`` as JSON."""
    if as_json:
        print(json.dumps({name: list(rows)}, ensure_ascii=False))  # noqa: T201
    else:
        head = list(rows[0]) if rows else []
        table(head, [[show(value) for value in row.values()] for row in rows], title)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Prints a table on standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, show_header=any(head), title_justify="left")
    for number, name in enumerate(head):
        numbers = all(row[number].replace(" ", "").replace(".", "").replace("n/a", "0").isdigit() for row in rows)
        drawn.add_column(name, overflow="fold", justify="right" if numbers else "left")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 140).print(drawn)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a bar on standard error while the block runs, if that is a terminal; gives ``advance(done, total)``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
