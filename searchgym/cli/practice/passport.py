"""The ``questions passport`` command: measures what a question set is worth."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from searchgym.cli.data import refuse_existing
from searchgym.cli.options import LoadOptions, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, emit_rows, say, stages
from searchgym.cli.run import OwnEnv, chosen_task

if TYPE_CHECKING:
    from searchgym.envs.task import Task


@takes_records
def questions_passport(
    *,
    env: OwnEnv = None,
    model: Annotated[str | None, typer.Option(help="Model that answers without searching.")] = None,
    trained_on: Annotated[
        list[str] | None, typer.Option(help="Question file of a training: copies are counted; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for a row per question, as JSON lines.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    choice: TaskChoice,
    loading: LoadOptions,
    json: Json = False,
) -> None:
    """Measure what a question set is worth.

    Shares of questions that need no search, that the corpus cannot answer, that occur twice, or that conflict.
    """
    from searchgym.corpora.files import write_jsonl
    from searchgym.corpora.questions import read_questions
    from searchgym.errors import UsageError
    from searchgym.eval.passport import MEASURES, passport_of
    from searchgym.retrieval.retriever import corpus_of

    if out is not None:
        refuse_existing(out, overwrite)
    task = chosen_task(env, choice)
    corpus = corpus_of(task.retriever)
    if corpus is None:
        raise UsageError("a passport needs a corpus on this machine: give --corpus FILE, and leave out --distractors")
    trained = [q.text for source in trained_on for q in read_questions(source)] if trained_on else None
    closed_book = None if model is None else _closed_book(task, model, loading)
    passport = passport_of(task.questions, corpus, task.rules.top_k, trained, closed_book)
    rows = passport.rows()
    if out is not None:
        ids = [question.id for question in task.questions]
        write_jsonl(out, ({"id": id} | {n: f[id] for n, f in passport.flags.items() if id in f} for id in ids))
    if json:
        emit({"questions": passport.questions, "measures": rows, "unmeasured": dict(passport.unmeasured)}, True)
        return
    emit_rows(rows, False, "measures", f"{passport.questions} questions, {task.rules.top_k} hits a search")
    for row in rows:
        say(f"{row['measure']}: {MEASURES[row['measure']]}")
    for name, why in passport.unmeasured.items():
        say(f"not measured: {name} ({why})")


def _closed_book(task: Task, model: str, loading: LoadOptions) -> dict[str, float]:
    """Returns the EM of a model that answers each question without searching."""
    from searchgym.agents.base import load_agent
    from searchgym.cli.evaluation.evaluate import named_models, open_models
    from searchgym.eval import evaluate
    from searchgym.eval.run_folder import RunReader

    agent = load_agent("direct")
    how = loading.how(64)
    named = named_models([model], agent, how)
    with tempfile.TemporaryDirectory() as folder, open_models(named, task, how) as models, stages() as report:
        evaluate(task, agent, Path(folder) / "run", models, progress=lambda *done: report("closed book", *done))
        rows = RunReader(Path(folder) / "run").question_rows()
    return {id: row["em"] for id, row in rows.items() if "em" in row}
