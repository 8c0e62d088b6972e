"""Official scores of a file of predictions, and a folder of these scores that can be compared with runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from searchgym import scoring
from searchgym.corpora.files import write_jsonl
from searchgym.corpora.folders import appearing
from searchgym.eval.formats.predictions import Prediction
from searchgym.eval.run_folder import QUESTIONS, SCORES
from searchgym.eval.runner import write_json, write_record
from searchgym.eval.scores import OFFICIAL, bootstrap_ci
from searchgym.records import Question, hops_of


def score_answers(
    predictions: Mapping[str, Prediction],
    questions: Sequence[Question],
    scorer: str,
    aliases: scoring.EntityAliases | None = None,
) -> tuple[dict[str, Any], Mapping[str, scoring.Scores]]:
    """Scores predictions with an official scorer.

    Args:
        predictions: Predictions by question id, one for every question.
        questions: Questions of the predictions.
        scorer: Name of an official scorer.
        aliases: Names by entity id, for ``2wiki`` only.

    Returns:
        The total scores (``n``, those of the scorer, ``answered``; ``NAME_ci95`` for EM and F1), and the scores of
        each question by id.

    Raises:
        ScoringError: The predictions do not match the questions one to one.
        UsageError: The scorer is unknown, or does not support aliases.
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
    rows: Mapping[str, scoring.Scores],
) -> None:
    """Writes a run folder without episodes, with official scores, that `searchgym compare` can read.

    Args:
        out: Folder to write; must be absent or empty.
        record: Description of the predictions, for ``run.json``.
        predictions: Predictions by question id.
        questions: Questions of the predictions.
        scores: Total scores.
        rows: Scores of each question, by id.

    Raises:
        RunExistsError: The folder is not empty.
    """
    by_question: list[dict[str, Any]] = []
    for question in sorted(questions, key=lambda question: question.id):
        answer, row = predictions[question.id].answer, rows[question.id]
        by_question.append(
            {
                "id": question.id,
                "hops": hops_of(question),
                "type": question.kind,
                **{name: row[name] or 0.0 for name in OFFICIAL if name in row},
                "answers": [None if answer is None else answer.text],
            }
        )
    with appearing(out) as folder:
        write_jsonl(folder / QUESTIONS, by_question)
        write_record(folder, record)
        write_json(folder / SCORES, scores)
