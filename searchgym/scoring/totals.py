"""Scores of a data set from the scores of its questions: checked ids and plain means, bit-identical in any order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from searchgym.errors import ScoringError, UnknownNameError
from searchgym.records import Answer, Question
from searchgym.scoring.evidence import EntityAliases
from searchgym.scoring.scorers import SCORERS, UNANSWERABLE_SUFFIX, Scores, score_question


def check_ids(
    predicted_ids: Iterable[str], questions: Sequence[Question], missing: Literal["error", "zero"] = "error"
) -> None:
    """Refuses predictions that do not match the questions one to one.

    Args:
        predicted_ids: Ids in the prediction file, duplicates included.
        questions: Every question that was asked.
        missing: ``"error"`` refuses missing ids; ``"zero"`` allows them, as in HotpotQA's and 2WikiMultihopQA's.

    Raises:
        ScoringError: If an id is missing, predicted twice, unknown, or shared by two questions.
    """
    expected, predicted = Counter(question.id for question in questions), Counter(iter(predicted_ids))
    faults = {
        "question ids that stand twice": [name for name, count in expected.items() if count > 1],
        "ids predicted more than once": [name for name, count in predicted.items() if count > 1],
        "predicted ids without a question": [name for name in predicted if name not in expected],
        "questions without a prediction": [name for name in expected if name not in predicted and missing == "error"],
    }
    problems = [f"{len(ids)} {what} (first: {ids[0]!r})" for what, ids in faults.items() if ids]
    if problems:
        raise ScoringError(
            f"{len(predicted)} predictions do not match {len(questions)} questions: {'; '.join(problems)}"
        )


def mean_scores(per_question: Sequence[Mapping[str, float | None]]) -> Scores:
    """Returns each metric's mean over the questions that have its key, bit-identical in any order of the questions.

    None counts as 0, as in the official scripts, but a metric that is None for every question has the mean None.

    Raises:
        ScoringError: If there is nothing to average.
    """
    if not per_question:
        raise ScoringError("there are no scores to average; score at least one question")
    columns: dict[str, list[float | None]] = {}
    for row in per_question:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    means: Scores = {}
    for name, column in columns.items():
        produced = [value for value in column if value is not None]
        means[name] = math.fsum(produced) / len(column) if produced else None
    return means


def aggregate(rows: Mapping[str, Mapping[str, float | None]], scorer: str) -> Scores:
    """Returns the scores of a data set from the scores of its questions.

    For ``"musique"``, if there are unanswerable questions, group metrics replace ``sufficiency``. For each pair of
    twins a group metric is the answerable question's value if both answerabilities were predicted right, else 0.

    Args:
        rows: Question id to the scores that `score_question` returned.
        scorer: A key of `SCORERS`.

    Raises:
        UnknownNameError: If there is no such scorer.
        ScoringError: If there are no rows, or some of MuSiQue's questions are not in pairs.
    """
    if scorer not in SCORERS:
        raise UnknownNameError("scorer", scorer, SCORERS)
    means = mean_scores(list(rows.values()))
    if scorer == "musique":
        means.pop("sufficiency", None)
        if any(name.endswith(UNANSWERABLE_SUFFIX) for name in rows):
            means |= mean_scores(_musique_groups(rows))
    return means


def _musique_groups(rows: Mapping[str, Mapping[str, float | None]]) -> list[Scores]:
    """Returns one row of group metrics per pair of an answerable question and its unanswerable twin."""
    answerable = [name for name in rows if not name.endswith(UNANSWERABLE_SUFFIX)]
    single = sorted({name + UNANSWERABLE_SUFFIX for name in answerable} ^ (rows.keys() - set(answerable)))
    if single:
        raise ScoringError(
            f"{len(single)} of MuSiQue's questions have no twin (first pair: {single[0]!r}): it is scored by pairs "
            "of an answerable and an unanswerable question: ask both of each, or answerable ones alone"
        )
    groups: list[Scores] = []
    for name in answerable:
        row, verdicts = rows[name], (rows[name].get("sufficiency"), rows[name + UNANSWERABLE_SUFFIX]["sufficiency"])
        right = None if None in verdicts else float(verdicts == (1.0, 1.0))
        group: Scores = {"group_sufficiency": right}
        for kind, prefix in (("answer", ""), ("support", "sp_")):
            for metric in ("em", "f1"):
                value = row.get(prefix + metric)
                group[f"group_{kind}_sufficiency_{metric}"] = None if right is None or value is None else right * value
        groups.append(group)
    return groups


def score_predictions(
    predictions: Mapping[str, Answer],
    questions: Sequence[Question],
    scorer: str,
    aliases: EntityAliases | None = None,
    missing: Literal["error", "zero"] = "error",
) -> Scores:
    """Scores the predictions for a data set: `check_ids`, `score_question` for each question, then `aggregate`.

    Args:
        predictions: Question id to answer.
        questions: Every question that was asked.
        scorer: A key of `SCORERS`.
        aliases: Names by entity id, for ``"2wiki"`` only.
        missing: What to do with a question that has no prediction: refuse it, or let it count 0.

    Raises:
        ScoringError: If predictions and questions do not match, or a question's gold data is inconsistent.
        UsageError: If the scorer is unknown, or `aliases` is given with another scorer than ``"2wiki"``.
    """
    check_ids(predictions, questions, missing)
    rows = {item.id: score_question(item, predictions.get(item.id), scorer, aliases) for item in questions}
    return aggregate(rows, scorer)
