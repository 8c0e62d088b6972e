"""The ``searchgym`` command line. Commands import lazily and print tables, or one JSON object with ``--json``."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from searchgym import threads
from searchgym.cli import data, doctor, index, models, serve, train
from searchgym.cli.evaluation.compare import compare
from searchgym.cli.evaluation.evaluate import evaluate
from searchgym.cli.evaluation.leaderboard import leaderboard
from searchgym.cli.evaluation.predictions import predictions
from searchgym.cli.evaluation.report import report
from searchgym.cli.evaluation.view import view
from searchgym.cli.listing import list_cards
from searchgym.cli.output import say, show_warnings
from searchgym.cli.play import play
from searchgym.cli.practice import generated
from searchgym.cli.practice.demonstrate import demonstrate
from searchgym.cli.practice.select import select_questions
from searchgym.cli.practice.selfplay import selfplay
from searchgym.cli.training.launch import launch
from searchgym.cli.training.show import show_episode
from searchgym.errors import SearchGymError, UsageError
from searchgym.threads import contained
from searchgym.version import __version__


class Commands(TyperGroup):
    """The commands, none of which a user's code ends as if all were well: a SystemExit in it is an error."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        with contained():
            return super().invoke(ctx)


app = typer.Typer(
    name="searchgym",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list")(list_cards)
app.command("play")(play)
app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("report")(report)
app.add_typer(leaderboard, name="leaderboard")
app.add_typer(predictions, name="predictions")
app.command("demonstrate")(demonstrate)
app.command("train")(train.train)
app.command("selfplay")(selfplay)
app.command("selfcheck")(train.selfcheck)
app.command("engine")(models.engine)
app.command("launch")(launch)
app.command("export")(models.export)
app.add_typer(models.model, name="model")
app.command("show")(show_episode)
app.command("view")(view)
app.command("demo")(train.demo)
app.command("retrieval")(data.retrieval)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.add_typer(data.corpus, name="corpus")
app.add_typer(index.index, name="index")
app.add_typer(generated.world, name="world")
generated.questions.command("select")(select_questions)
app.add_typer(generated.questions, name="questions")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """A gym and trainer for agentic search."""
    if version:
        print(f"searchgym {__version__}")  # noqa: T201
    elif context.invoked_subcommand is None:
        print(context.get_help())  # noqa: T201
        raise typer.Exit(2)


def program() -> NoReturn:
    """Runs the command line and ends the program, even while a model or a retriever still computes."""
    try:
        main()
    except SystemExit as end:
        threads.leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    threads.leave(0)


def main() -> None:
    """Runs the command line: errors go to standard error in one line, with status 2 for a wrong argument, else 1."""
    try:
        with warnings.catch_warnings():
            show_warnings()
            app(prog_name="searchgym")
    except SearchGymError as error:
        say(f"error: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"error: {where}{error.strerror or error}")
        sys.exit(1)
