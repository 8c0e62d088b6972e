"""The ``predictions`` commands: write a run's predictions in an official format, and score a file in any of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.data import Overwrite, refuse_existing
from searchgym.cli.output import Json, emit, say, say_next
from searchgym.cli.run import OwnEnv, load
from searchgym.errors import RunExistsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from searchgym.envs.options import TaskOptions
    from searchgym.envs.task import Task
    from searchgym.eval.formats.predictions import Prediction

predictions = typer.Typer(help="Export predictions, or score a file of them.", no_args_is_help=True)

FORMATS = "hotpotqa, 2wiki, musique, kilt or flashrag"
Questions = Annotated[str | None, typer.Option(help="Question file, if not that of the environment.")]
Aliases = Annotated[Path | None, typer.Option(help="2WikiMultihopQA's id_aliases.json.")]


@predictions.callback()
def group() -> None:
    """Export predictions, or score a file of them."""


@predictions.command("export")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run; of a suite, that of one of its parts.")],
    form: Annotated[str, typer.Option("--format", help=f"Format: {FORMATS}.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    questions: Questions = None,
    aliases: Aliases = None,
    attempt: Annotated[int, typer.Option(min=0, help="Which attempt at each question, in a run with several.")] = 0,
    pages_as_support: Annotated[
        bool,
        typer.Option("--pages-as-support", help="Take the pages returned for the support of answers that state none."),
    ] = False,
    wikipedia_ids: Annotated[
        bool, typer.Option("--wikipedia-ids", help="KILT: ids of passages, before any #, are ids of Wikipedia pages.")
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a run's predictions in an official format.

    The official script of a data set reads the file.
    """
    from searchgym.eval.formats.files import check_format, write_predictions
    from searchgym.eval.formats.predictions import reduced_to_format
    from searchgym.eval.formats.run import predictions_of, run_record, with_pages_as_support

    check_format(form)
    refuse_existing(out, overwrite)
    env = str(run_record(run)["env"])
    if env.startswith("own/") and questions is None:
        raise UsageError(f"{run} asked questions of your own: give the file as --questions")
    task = task_of_questions(None if env.startswith("own/") else env, questions, aliases, "hotpotqa")
    written, records = predictions_of(run, task.questions, attempt)
    dropped = sum(reduced_to_format(prediction, form).answer != prediction.answer for prediction in written)
    if pages_as_support:
        written = [
            with_pages_as_support(prediction, question) for prediction, question in zip(written, records, strict=True)
        ]
    write_predictions(out, written, records, form, wikipedia_ids)
    unanswered = sum(prediction.answer is None for prediction in written)
    emit(
        {"run": str(run), "format": form, "n": len(written), "unanswered": unanswered, "out": str(out)}, json, "export"
    )
    if not json and questions is None:
        say_next("predictions", "score", out, env)
    for note in _notes(written, form, wikipedia_ids):
        say(f"note: {note}")
    if dropped:
        say(f"note: {dropped} answers state more than the format has a place for")


def _notes(written: Sequence[Prediction], form: str, wikipedia_ids: bool) -> list[str]:
    """Returns what a reader of the file should know, in words."""
    from searchgym.eval.formats.predictions import PREDICTION_FORMATS

    notes, keeps = [], PREDICTION_FORMATS[form].keeps
    answers = [prediction.answer for prediction in written if prediction.answer is not None]
    stated = {"supporting_facts": "supporting facts", "evidences": "evidence triples", "paragraphs": "paragraphs"}
    for field, words in stated.items():
        if field in keeps and all(getattr(answer, field) is None for answer in answers):
            notes.append(f"no answer states {words}: the official script counts them as 0")
    if (
        any(fact.sentence is None for answer in answers for fact in answer.supporting_facts or ())
        and "supporting_facts" in keeps
    ):
        notes.append("some supporting facts name a page only: their sentence is null, which matches none")
    if form == "kilt" and not wikipedia_ids:
        notes.append(
            "pages have no wikipedia_id, so that the official script finds nothing retrieved (--wikipedia-ids)"
        )
    return notes


@predictions.command("score")
def score(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of predictions, of a run or of another system.")],
    env: OwnEnv = None,
    questions: Questions = None,
    aliases: Aliases = None,
    form: Annotated[str | None, typer.Option("--format", help=f"Format: {FORMATS}; detected by default.")] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Official scorer; by default that of the environment, or else of the format.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="A question without a prediction is an error, or counts zero.")
    ] = "error",
    out: Annotated[Path | None, typer.Option(help="Folder for the scores, which `compare` reads as a run.")] = None,
    json: Json = False,
) -> None:
    """Score predictions as the official scripts do.

    Scores have 95 % intervals.
    """
    from searchgym.corpora.files import sha256_file
    from searchgym.eval.formats.files import detect_format, read_predictions
    from searchgym.eval.formats.score import score_answers, write_scored
    from searchgym.eval.runner import questions_sha256
    from searchgym.version import __version__

    if missing not in ("error", "zero"):
        raise UsageError(f"--missing is error or zero, got {missing!r}")
    if env is None and questions is None:
        raise UsageError("which questions? Give the ID of an environment (searchgym list), or --questions FILE")
    if out is not None and out.exists():
        raise RunExistsError(f"{out} already exists: choose another --out")
    detected = form or detect_format(file)
    task = task_of_questions(env, questions, aliases, scorer or detected)
    read = read_predictions(file, task.questions, form, missing)  # type: ignore[arg-type]  # checked above
    chosen = scorer or task.card.scorer
    names = task.aliases if chosen == "2wiki" else None
    scores, rows = score_answers(read, task.questions, chosen, names)
    if out is not None:
        source = {"file": file.name, "format": detected, "sha256": sha256_file(file)}
        record: dict[str, Any] = {"env": task.card.id, "agent": file.name, "predictions": source}
        record |= {"questions": len(task.questions), "questions_sha256": questions_sha256(task.questions)}
        write_scored(out, record | {"scorer": chosen, "searchgym": __version__}, read, task.questions, scores, rows)
    emit({"format": detected, "scorer": chosen, **scores}, json, file.name)


def task_of_questions(env: str | None, questions: str | None, aliases: Path | None, scorer: str) -> Task:
    """Returns the task of an environment, or of the user's questions with a scorer, without anything to search."""
    import dataclasses

    from searchgym.envs.options import UNSEARCHED
    from searchgym.envs.registration import own_card
    from searchgym.envs.task import load_task
    from searchgym.options.yaml import parse_yaml
    from searchgym.retrieval.retriever import NullRetriever

    fields = questions is not None and questions.lstrip().startswith("{")
    source = parse_yaml(str(questions), "--questions") if fields else questions
    sources: dict[str, Any] = {"questions": source, "aliases": aliases, "retriever": NullRetriever(), **UNSEARCHED}
    options: TaskOptions = {name: value for name, value in sources.items() if value is not None}  # type: ignore[assignment]
    if env is not None:
        return load(env, options)
    card = own_card(f"own/{Path(str(questions)).stem}")
    return load_task(dataclasses.replace(card, scorer=scorer), **options)  # type: ignore[arg-type]  # scoring checks it
