"""Predictions of a finished run, read from the run's episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from searchgym.errors import DataError, UsageError
from searchgym.eval.formats.predictions import Prediction
from searchgym.eval.run_folder import SUITE, RunReader
from searchgym.eval.runner import questions_sha256
from searchgym.records import Passage, Question, SupportingFact, title_key
from searchgym.rollout.storage import read_episodes
from searchgym.scoring import check_ids


def run_record(run: Path) -> dict[str, Any]:
    """Returns the configuration of a finished run with episodes, from ``run.json``.

    Raises:
        UsageError: The folder holds a suite, an unfinished run, or scores of a file of predictions.
        DataMissingError: The folder holds no run.
        DataError: ``run.json`` is damaged.
    """
    if (run / SUITE).is_file():
        raise UsageError(f"{run} is the run of a suite: name the folder of one of its parts, such as {run}/PART")
    reader = RunReader(run)
    record = reader.record()
    if not reader.is_finished:
        raise UsageError(f"{run} holds an unfinished run: end it with `searchgym eval --resume` first")
    if missing := [key for key in ("env", "questions_sha256") if not isinstance(record.get(key), str)]:
        raise DataError(f"damaged: run.json lacks {' and '.join(missing)}", run)
    if not reader.path.is_file():
        raise UsageError(
            f"{run} holds no episodes: it has the scores of a file of predictions, which is exported already"
        )
    return record


def questions_of_run(run: Path, questions: Sequence[Question], ids: Collection[str] | None = None) -> list[Question]:
    """Returns those of some questions that a run asked.

    Args:
        run: Folder of the run.
        questions: Questions of the run's environment.
        ids: Ids of the questions that have an episode. Default: those in the episodes of the run.

    Raises:
        DataError: `questions` lacks questions of the run or has changed ones.
    """
    ids = {e.question_id for e in read_episodes(RunReader(run).path, tokens=False)} if ids is None else ids
    record = run_record(run)
    of_run = [question for question in questions if question.id in ids]
    if len(of_run) < len(ids) or questions_sha256(of_run) != record["questions_sha256"]:
        raise DataError(
            f"the run asked {record.get('questions')} questions, of which {len(of_run)} are among the {len(questions)} "
            "given, or they have changed: pass the file of the run's questions as --questions, and its --aliases",
            run,
        )
    return of_run


def predictions_of(
    run: Path, questions: Sequence[Question], attempt: int = 0
) -> tuple[list[Prediction], list[Question]]:
    """Reads the predictions of a finished run.

    Args:
        run: Folder of the run.
        questions: Questions of the run's environment; those without an episode are left out.
        attempt: Index of the attempt at each question, from 0, in a run with several samples.

    Returns:
        The predictions and their questions, both in the order of `questions`.

    Raises:
        UsageError: The folder holds no finished run, or there is no such attempt.
        DataError: The run is damaged, or `questions` lacks questions of the run or has changed ones.
    """
    record = run_record(run)
    samples = record.get("samples", 1)
    if not 0 <= attempt < samples:
        raise UsageError(f"attempt {attempt}: {run} holds {samples} for each question, numbered from 0")
    episodes = {e.question_id: e for e in read_episodes(RunReader(run).path) if e.attempt == attempt}
    of_run = questions_of_run(run, questions, episodes)
    check_ids(episodes, of_run)
    predictions = []
    for question in of_run:
        episode = episodes[question.id]
        pages: dict[str, Passage] = {}
        for searched in episode.searches:
            for hit in searched.hits:
                pages.setdefault(hit.passage.id, hit.passage)
        predictions.append(Prediction(question.id, episode.answer, tuple(pages.values())))
    return predictions, of_run


def with_pages_as_support(prediction: Prediction, question: Question) -> Prediction:
    """Returns a prediction with retrieved pages as its support, if the agent stated none.

    Supporting facts are then the distinct titles of the pages, with unknown sentences. MuSiQue's supporting paragraphs
    are the question's paragraphs whose title and text were retrieved. A prediction without an answer or without pages
    does not change.
    """
    answer, pages = prediction.answer, prediction.pages
    if answer is None or not pages:
        return prediction
    if answer.supporting_facts is None:
        titles = dict.fromkeys(page.title for page in pages)
        answer = dataclasses.replace(answer, supporting_facts=tuple(map(SupportingFact, titles)))
    if answer.paragraphs is None and question.paragraphs is not None:
        returned = {(title_key(page.title), title_key(page.text)) for page in pages}
        paragraphs = enumerate((title_key(p.title), title_key(p.text)) for p in question.paragraphs)
        answer = dataclasses.replace(answer, paragraphs=tuple(n for n, key in paragraphs if key in returned))
    return dataclasses.replace(prediction, answer=answer)
