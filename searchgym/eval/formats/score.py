"""Scores of a file of predictions, by the official scorers, and a folder of them that can be compared with runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from searchgym import scoring
from searchgym.corpora.files import write_jsonl
from searchgym.errors import RunExistsError
from searchgym.eval.formats.predictions import Prediction
from searchgym.eval.intervals import bootstrap_ci
from searchgym.eval.runner import QUESTIONS, SCORES, write_json
from searchgym.eval.scores import OFFICIAL
from searchgym.records import Question, hops_of

Rows = Mapping[str, scoring.Scores]
"""Question id to official scores."""


def score_answers(
    predictions: Mapping[str, Prediction],
    questions: Sequence[Question],
    scorer: str,
    aliases: scoring.EntityAliases | None = None,
) -> tuple[dict[str, Any], Rows]:
    """Scores predictions.

    Args:
        predictions: Question id to prediction, one for every question.
        questions: The questions.
        scorer: Name of an official scorer.
        aliases: Names by entity id, for ``2wiki`` only.

    Returns:
        The scores of the whole (``n``, those of the scorer, ``answered``; ``NAME_ci95`` for EM and F1), and those of
        each question.

    Raises:
        ScoringError: The predictions do not match the questions one to one.
        UsageError: The scorer is unknown, or takes no aliases.
    """
    scoring.check_ids(predictions, questions)
    rows = {q.id: scoring.score_question(q, predictions[q.id].answer, scorer, aliases) for q in questions}
    scores: dict[str, Any] = {"n": len(questions), **scoring.aggregate(rows, scorer)}
    if twins := sum(question.answerable is False for question in questions):
        scores["answerable"] = scores["n"] - twins
    for name in OFFICIAL:
        values = [row[name] or 0.0 for _, row in sorted(rows.items()) if name in row]
        if values:
            scores[f"{name}_ci95"] = bootstrap_ci(values)
    answered = [float(predictions[question.id].answer is not None) for question in questions]
    return scores | {"answered": math.fsum(answered) / len(answered)}, rows


def write_scored(
    out: Path,
    record: Mapping[str, Any],
    predictions: Mapping[str, Prediction],
    questions: Sequence[Question],
    scores: Mapping[str, Any],
    rows: Rows,
) -> None:
    """Writes a folder that `searchgym compare` reads as a run: it has no episodes, and its scores are official ones.

    Args:
        out: The folder; it must not exist, or be empty.
        record: What was scored, for ``run.json``.
        predictions: Question id to prediction.
        questions: The questions.
        scores: Scores of the whole.
        rows: Scores of each question.

    Raises:
        RunExistsError: The folder holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunExistsError(f"{out} holds something already: choose another --out")
    write_jsonl(out / QUESTIONS, _question_rows(predictions, questions, rows))
    write_json(out / "run.json", record)
    write_json(out / SCORES, scores)  # last: a folder with scores is finished


def _question_rows(
    predictions: Mapping[str, Prediction], questions: Sequence[Question], rows: Rows
) -> Iterator[dict[str, Any]]:
    """Yields one row per question, in order of ids, with the keys of a run's that predictions can tell."""
    for question in sorted(questions, key=lambda own: own.id):
        answer, row = predictions[question.id].answer, rows[question.id]
        yield {
            "id": question.id,
            "hops": hops_of(question),
            "type": question.kind,
            **{name: row[name] or 0.0 for name in OFFICIAL if name in row},
            "answers": [None if answer is None else answer.text],
        }
