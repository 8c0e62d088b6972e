"""Output of commands: tables for people, one JSON object for programs, progress on standard error."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.tables import laid_out
from searchgym.errors import DataWarning

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
"""Characters that no text shows and that names and pages may contain: those that steer the terminal, turn the direction
of writing, have no width or are half of a pair."""
_HALF = re.compile(r"[\ud800-\udfff]")


MOST_SHOWN = 20_000
"""Maximum number of characters of one text that people are shown: a page may hold many megabytes."""


def printable(text: str) -> str:
    """Returns a text without characters of `CONTROL`, cut to `MOST_SHOWN` characters."""
    left = len(text) - MOST_SHOWN
    cut = text if left <= 0 else f"{text[:MOST_SHOWN]} ... ({left:,} more characters)"
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", cut)


def say(text: str) -> None:
    """Prints a text on standard error as `printable` gives it.

    Its further lines are indented, so that a name with a line break in it cannot pass for a line of the program's.
    """
    print(printable(text).replace("\n", "\n  "), file=sys.stderr)  # noqa: T201


def say_next(*words: object) -> None:
    """Prints the command that a user is most likely to need next, on standard error in one line."""
    say(f"next: searchgym {shlex.join(map(str, words))}")


def show_warnings() -> None:
    """Makes Python show what was left out or guessed of data as a note, in one line and once."""
    usual = warnings.showwarning
    printed: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *location: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            if str(message) not in printed:
                printed.add(str(message))
                say(f"note: {message}")
        else:
            usual(message, category, *location, **more)

    warnings.showwarning = show


def in_colour() -> bool:
    """Tells whether standard output takes ANSI escapes: a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def tell(text: str) -> None:
    """Prints a text on standard output as `printable` gives it."""
    print(printable(text))  # noqa: T201


def show(value: Any) -> str:
    """Formats a value for a table: n/a for None, four decimals for floats."""
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return "\n".join(f"{name}: {show(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(show(item) for item in value)
    return str(value)


def _print_json(content: Mapping[str, Any]) -> None:
    """Prints a JSON object on standard output; half a pair of characters, as some names of files have, is escaped."""
    text = json.dumps(content, ensure_ascii=False)
    print(json.dumps(content) if _HALF.search(text) else text, flush=True)  # noqa: T201


def emit(content: Mapping[str, Any], as_json: bool, title: str = "") -> None:
    """Prints a mapping as a table of two columns, or as a JSON object."""
    if as_json:
        _print_json(content)
    else:
        table(("", ""), [(name, show(value)) for name, value in content.items()], title)


def emit_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, name: str, title: str = "") -> None:
    """Prints rows with the same keys as a table, or as a JSON object ``{name: [row, ...]}``."""
    if as_json:
        _print_json({name: list(rows)})
    else:
        head = list(rows[0]) if rows else []
        table(head, [[show(value) for value in row.values()] for row in rows], title)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Prints a table of `printable` cells on standard output as plain text.

    It is as wide as the terminal, or as $COLUMNS says, or 80 columns; see `tables.laid_out` for what does not fit.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    lines = laid_out(list(map(printable, head)), cells, shutil.get_terminal_size().columns)
    print("\n".join([*(["", printable(title)] if title else []), *lines]), flush=True)  # noqa: T201


def bars(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Returns progress bars on standard error with ``done/whole`` and more columns; disabled unless in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    first = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    return Progress(*first, *columns, console=console, disable=not console.is_terminal, transient=transient)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a progress bar while the block runs, if standard error is a terminal; yields ``advance(done, total)``."""
    from rich.progress import TimeRemainingColumn

    with bars(TimeRemainingColumn()) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def announce() -> Callable[[str, int, int], None]:
    """Returns ``report(stage, done, whole)``, which prints each stage's name on standard error as the stage begins."""
    begun: set[str] = set()

    def report(stage: str, done: int, whole: int) -> None:
        if stage not in begun:
            begun.add(stage)
            say(f"{stage} ...")

    return report


EVERY = 30.0
"""Seconds between two progress lines where standard error is not a terminal."""


@contextmanager
def stages(expected: int = 0) -> Iterator[Callable[[str, int, int], None]]:
    """Shows the progress of a long task by stage on standard error: bars in a terminal, else occasional lines.

    Args:
        expected: Total assumed for stages that report no total.

    Yields:
        ``report(stage, done, whole)``, to be called with a total of 0 if it is unknown.
    """
    from rich.progress import TextColumn, TimeRemainingColumn

    with bars(TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), transient=False) as bar:
        tasks: dict[str, Any] = {}
        lines = _Lines()

        def report(stage: str, done: int, whole: int) -> None:
            whole = whole or max(expected, done)
            if bar.disable:
                lines.report(stage, done, whole)
                return
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=whole, rate="")
            speed = bar.tasks[tasks[stage]].speed
            bar.update(tasks[stage], completed=done, total=whole, rate=rate(speed or 0.0))

        yield report


def rate(speed: float) -> str:
    """Formats a number per second, with decimals where they tell something."""
    return f"{speed:.0f}/s" if speed >= 10 else f"{speed:.2f}".rstrip("0").rstrip(".") + "/s"


class _Lines:
    """Prints progress lines, at most one per `EVERY` seconds."""

    def __init__(self) -> None:
        self._stage, self._first, self._began, self._said = "", 0, 0.0, 0.0

    def report(self, stage: str, done: int, whole: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._first, self._began, self._said = stage, done, now, now
            return
        if now - self._said >= EVERY:
            self._said = now
            speed = (done - self._first) / max(now - self._began, 1e-9)  # a resumed stage does not start at 0
            left = (whole - done) / speed if speed else 0.0
            say(f"{stage}: {done} of {whole}, {rate(speed)}, {left:.0f} s left")
