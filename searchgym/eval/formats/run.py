"""Predictions of a finished run, read from its episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
    """Returns what a finished run says about itself.

    Raises:
        UsageError: The folder holds a suite, an unfinished run, or scores of a file of predictions.
        DataMissingError: The folder holds no run.
        DataError: The record is damaged.
    """
    if (run / SUITE).is_file():
        raise UsageError(f"{run} is the run of a suite: name the folder of one of its parts, such as {run}/PART")
    reader = RunReader(run)
    record = reader.record()
    if not reader.is_finished:
        raise UsageError(f"{run} holds an unfinished run: end it with `searchgym eval --resume` first")
    if missing := [key for key in ("env", "questions_sha256") if not isinstance(record.get(key), str)]:
        raise DataError(f"damaged: its record does not tell {' and '.join(missing)}", run)
    if not reader.path.is_file():
        raise UsageError(
            f"{run} holds no episodes: it has the scores of a file of predictions, which is exported already"
        )
    return record


def predictions_of(
    run: Path, questions: Sequence[Question], attempt: int = 0
) -> tuple[list[Prediction], list[Question]]:
    """Reads the predictions of a finished run.

    Args:
        run: The run folder.
        questions: The questions of its environment; those that the run did not ask are left out.
        attempt: Which attempt at each question, from 0, in a run with several samples.

    Returns:
        The predictions and their questions, both in the order of `questions`.

    Raises:
        UsageError: The folder holds no finished run, or there is no such attempt.
        DataError: The run is damaged, or its questions are others than those given.
    """
    record = run_record(run)
    samples = record.get("samples", 1)
    if not 0 <= attempt < samples:
        raise UsageError(f"attempt {attempt}: {run} holds {samples} for each question, numbered from 0")
    episodes = {e.question_id: e for e in read_episodes(RunReader(run).path) if e.attempt == attempt}
    asked = [question for question in questions if question.id in episodes]
    if len(asked) < len(episodes) or questions_sha256(asked) != record["questions_sha256"]:
        raise DataError(
            f"the run asked {record.get('questions')} questions, of which {len(asked)} are among the {len(questions)} "
            "given, or they have changed: give the file that it asked as --questions, and its --aliases if it had any",
            run,
        )
    check_ids(episodes, asked)
    predictions = []
    for question in asked:
        episode = episodes[question.id]
        pages: dict[str, Passage] = {}
        for searched in episode.searches:
            for hit in searched.hits:
                pages.setdefault(hit.passage.id, hit.passage)
        predictions.append(Prediction(question.id, episode.answer, tuple(pages.values())))
    return predictions, asked


def with_pages_as_support(prediction: Prediction, question: Question) -> Prediction:
    """Returns a prediction whose support, where the agent stated none, is the pages that its searches returned.

    Supporting facts are then the titles of the pages, each once, with sentences that are not known. MuSiQue's are the
    question's own paragraphs of which the title and the text were returned. A prediction without an answer or without
    pages stays as it is.
    """
    answer, pages = prediction.answer, prediction.pages
    if answer is None or not pages:
        return prediction
    if answer.supporting_facts is None:
        titles = dict.fromkeys(page.title for page in pages)
        answer = dataclasses.replace(answer, supporting_facts=tuple(map(SupportingFact, titles)))
    if answer.paragraphs is None and question.paragraphs is not None:
        found = {(title_key(page.title), title_key(page.text)) for page in pages}
        own = enumerate((title_key(p.title), title_key(p.text)) for p in question.paragraphs)
        answer = dataclasses.replace(answer, paragraphs=tuple(n for n, key in own if key in found))
    return dataclasses.replace(prediction, answer=answer)
