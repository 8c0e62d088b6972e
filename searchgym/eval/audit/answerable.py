"""Scores on the questions that a corpus can answer, beside those on all questions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import iter_jsonl
from searchgym.envs.task import Task
from searchgym.errors import DataError
from searchgym.eval.audit.audit import audit_corpus
from searchgym.eval.scores import bootstrap_ci
from searchgym.retrieval.retriever import corpus_of

ROWS: Final = "questions.jsonl"
"""File of an audit's folder with a row for each question."""
MOST: Final = 200_000
"""Maximum number of passages of a corpus that every evaluation audits; a larger one needs ``corpus audit`` once."""


def answerable_questions(task: Task) -> frozenset[str] | None:
    """Returns the ids of the questions that a task's corpus can answer, and of those that name no gold page.

    Returns:
        The ids; None if the corpus is not on this machine, has more than `MOST` passages, or no question names a gold
        page.
    """
    corpus = corpus_of(task.retriever)
    if corpus is None or len(corpus) > MOST or all(question.gold_titles is None for question in task.questions):
        return None
    audited = audit_corpus(task.questions, corpus.passages)
    return frozenset(question.id for question in audited if question.answerable is not False)


def read_answerable(folder: Path, task: Task) -> frozenset[str]:
    """Returns the ids of the questions that can be answered, or name no gold page, from an audit's folder.

    Raises:
        DataMissingError: The folder holds no audit.
        DataError: A row is not that of an audit, or a question of the task is not in it.
    """
    path, ids_of_audit, ids = folder / ROWS, set[str](), set[str]()
    for line, row in iter_jsonl(path):
        if "answerable" not in row or "id" not in row:
            raise DataError("is not a row of `searchgym corpus audit --out`", path, line)
        ids_of_audit.add(str(row["id"]))
        if row["answerable"] is not False:
            ids.add(str(row["id"]))
    if missing := next((question.id for question in task.questions if question.id not in ids_of_audit), None):
        raise DataError(f"has no question {missing!r}: audit the questions that are evaluated", path)
    return frozenset(ids)


def on_answerable(em: Mapping[str, float], answerable: Collection[str]) -> dict[str, Any] | None:
    """Returns the EM on the questions that can be answered from a corpus.

    Args:
        em: EM by question id.
        answerable: Ids of the questions that can be answered.

    Returns:
        ``n`` of the questions with an EM, ``of`` all, ``em`` (None without such a question) and ``em_ci95``; None if
        all can be answered.
    """
    values = [value for id, value in sorted(em.items()) if id in answerable]
    if len(values) == len(em):
        return None
    mean = math.fsum(values) / len(values) if values else None
    return {"n": len(values), "of": len(em), "em": mean, "em_ci95": bootstrap_ci(values) if values else None}
