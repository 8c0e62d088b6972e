"""The command line: thin, imports lazily, prints tables for people and one JSON object with ``--json``."""

from __future__ import annotations

import sys

import typer

from searchgym.cli import data, run, world
from searchgym.errors import SearchGymError, UsageError

app = typer.Typer(
    name="searchgym",
    help="A gym and trainer for agentic search.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list")(run.list_cards)
app.command("play")(run.play)
app.command("eval")(run.evaluate)
app.command("demo")(run.demo)
app.command("retrieval")(data.retrieval)
app.add_typer(data.corpus, name="corpus")
app.add_typer(data.index, name="index")
app.add_typer(world.world, name="world")


def main() -> None:
    """Runs the command line: errors go to standard error in one line, with status 2 for a wrong argument, else 1."""
    try:
        app(prog_name="searchgym")
    except SearchGymError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2 if isinstance(error, UsageError) else 1)
