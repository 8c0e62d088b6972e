"""The ``searchgym`` command line. Commands import lazily and print tables, or one JSON object with ``--json``."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from searchgym import threads
from searchgym.cli import data, doctor, index, models, train
from searchgym.cli.audit import corpus_audit
from searchgym.cli.evaluation.compare import compare
from searchgym.cli.evaluation.evaluate import evaluate
from searchgym.cli.evaluation.judge import judge_runs
from searchgym.cli.evaluation.leaderboard import leaderboard
from searchgym.cli.evaluation.predictions import predictions
from searchgym.cli.evaluation.report import report
from searchgym.cli.evaluation.view import view
from searchgym.cli.listing import list_cards
from searchgym.cli.output import say, show_warnings
from searchgym.cli.play import play
from searchgym.cli.practice import generated
from searchgym.cli.practice.demonstrate import demonstrate
from searchgym.cli.practice.passport import questions_passport
from searchgym.cli.practice.select import select_questions
from searchgym.cli.practice.selfplay import selfplay
from searchgym.cli.serving.model import serve_model
from searchgym.cli.serving.retriever import serve_retriever
from searchgym.cli.training.check_dump import check_dump
from searchgym.cli.training.show import show_episode
from searchgym.errors import CardError, DataMissingError, RunExistsError, SearchGymError, UsageError
from searchgym.threads import contained
from searchgym.version import __version__


class Commands(TyperGroup):
    """The commands, listed in groups; a SystemExit in a user's code ends none of them as if all were well."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        with contained():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands with their summaries, group by group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            groups.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(SUMMARY)))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(NAME), summary) for name, summary in rows])


MISTAKES: Final = (UsageError, CardError, DataMissingError, RunExistsError)
"""Errors that a command raises before it begins its work: wrong names and values, and files that are not there."""
SUMMARY: Final = 50
"""Maximum characters of a command's summary."""
NAME: Final = 12
"""Width of the column of command names."""
START, EVALUATE, TRAIN = "Start", "Evaluate", "Train"
DOCUMENTS, MODELS = "Documents and questions", "Models and servers"

serving = typer.Typer(help="Serve a retriever or a model over HTTP.", no_args_is_help=True)
serving.command("retriever")(serve_retriever)
serving.command("model")(serve_model)
generated.questions.command("select")(select_questions)
generated.questions.command("passport")(questions_passport)
data.corpus.command("audit")(corpus_audit)

app = typer.Typer(
    name="searchgym",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo", rich_help_panel=START)(train.demo)
app.command("list", rich_help_panel=START)(list_cards)
app.command("doctor", rich_help_panel=START)(doctor.doctor)
app.command("play", rich_help_panel=START)(play)
app.command("eval", rich_help_panel=EVALUATE)(evaluate)
app.command("judge", rich_help_panel=EVALUATE)(judge_runs)
app.command("compare", rich_help_panel=EVALUATE)(compare)
app.command("report", rich_help_panel=EVALUATE)(report)
app.command("view", rich_help_panel=EVALUATE)(view)
app.command("show", rich_help_panel=EVALUATE)(show_episode)
app.command("retrieval", rich_help_panel=EVALUATE)(data.retrieval)
app.add_typer(leaderboard, name="leaderboard", rich_help_panel=EVALUATE)
app.add_typer(predictions, name="predictions", rich_help_panel=EVALUATE)
app.command("train", rich_help_panel=TRAIN)(train.train)
app.command("selfplay", rich_help_panel=TRAIN)(selfplay)
app.command("demonstrate", rich_help_panel=TRAIN)(demonstrate)
app.command("selfcheck", rich_help_panel=TRAIN)(train.selfcheck)
app.command("check-dump", rich_help_panel=TRAIN)(check_dump)
app.add_typer(data.corpus, name="corpus", rich_help_panel=DOCUMENTS)
app.add_typer(index.index, name="index", rich_help_panel=DOCUMENTS)
app.add_typer(generated.questions, name="questions", rich_help_panel=DOCUMENTS)
app.add_typer(generated.world, name="world", rich_help_panel=DOCUMENTS)
app.add_typer(models.model, name="model", rich_help_panel=MODELS)
app.add_typer(serving, name="serve", rich_help_panel=MODELS)


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
    """Runs the command line: errors go to standard error in one line.

    The status is 2 if the user asked for what cannot be (`MISTAKES`), and 1 if something began and failed.
    """
    try:
        with warnings.catch_warnings():
            show_warnings()
            app(prog_name="searchgym")
    except SearchGymError as error:
        say(f"error: {error}")
        sys.exit(2 if isinstance(error, MISTAKES) else 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"error: {where}{error.strerror or error}")
        sys.exit(2 if isinstance(error, FileNotFoundError) else 1)
