"""Comparison of runs on the same questions, question by question, with paired intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.eval.intervals import bootstrap_ci
from searchgym.eval.runner import QUESTIONS, SCORES

Rows = Mapping[str, Mapping[str, Any]]
"""Question id to the row of the question in ``questions.jsonl``."""
SAME: Final = ("env", "questions_sha256", "scorer")
"""What runs must have in common, so that their questions can be paired."""
TRACK: Final = (
    "corpus_sha256", "retriever", "top_k", "max_turns", "max_queries", "max_observation_words", "protocol", "browse",
    "snippet_words", "sources",
)  # fmt: skip
"""What runs should have in common, so that a difference is one of the agents."""


@dataclass(frozen=True)
class Run:
    """A finished run, for comparisons."""

    name: str
    record: Mapping[str, Any]
    rows: Rows
    scores: Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences of a score, with its interval and what it is made of."""

    mean: float
    low: float
    high: float
    wins: int
    """Number of questions in which the first is better."""
    losses: int
    ties: int

    @property
    def verdict(self) -> str:
        """``"better"`` or ``"worse"``, or ``"not distinguishable"`` if the interval holds 0."""
        return "not distinguishable" if self.low <= 0 <= self.high else "better" if self.mean > 0 else "worse"


def read_run(folder: Path) -> Run:
    """Reads a finished run folder.

    Raises:
        DataError: The folder holds no finished run.
    """
    record, scores = read_json(folder / "run.json"), read_json(folder / SCORES)
    if not isinstance(record, dict) or not isinstance(scores, dict):
        raise DataError("damaged: expected the record and the scores of a run", folder)
    if not (folder / QUESTIONS).is_file():
        reason = "has no scores of questions: `searchgym eval` with --resume and --out writes them"
        raise DataMissingError(reason, folder / QUESTIONS)
    rows: dict[str, dict[str, Any]] = {}
    for line, row in iter_jsonl(folder / QUESTIONS):
        if not isinstance(row.get("id"), str) or row["id"] in rows:
            raise DataError(f"expected the id of another question, got {row.get('id')!r:.60}", folder / QUESTIONS, line)
        for name in ("em", "f1", "searches"):
            value = row.get(name, 0.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise DataError(f"{name}: expected a number, got {value!r:.60}", folder / QUESTIONS, line)
        rows[row["id"]] = row
    return Run(str(folder), record, rows, scores)


def check_comparable(runs: Sequence[Run]) -> list[str]:
    """Returns what differs between runs beside their agents and models, in words.

    Raises:
        UsageError: The runs asked different questions, so that nothing can be paired; the message names the field.
    """
    first, notes = runs[0], []
    for run in runs[1:]:
        for field in SAME:
            if run.record.get(field) != first.record.get(field):
                then, now = first.record.get(field), run.record.get(field)
                asked = " and ".join(map(_asked, (first, run))) if field == "questions_sha256" else ""
                told = f"{field} {then!r} and {now!r}" + (f" ({asked})" if asked else "")
                raise UsageError(f"{first.name} and {run.name} asked different questions: {told}")
        if run.rows.keys() != first.rows.keys():
            raise UsageError(f"{first.name} and {run.name} have scores of different questions: damaged {QUESTIONS}")
        for field in TRACK:
            now, then = run.record.get(field), first.record.get(field)
            if now != then:
                notes.append(f"{run.name}: {field} is {now!r}, not {then!r}")
        written, retrieved = (one.scores.get("simulated") or 0.0 for one in (run, first))
        if (written > 0) != (retrieved > 0):
            of = run.name if written else first.name
            notes.append(
                f"{of}: a model wrote {max(written, retrieved):.0%} of its hits; the other run's were retrieved"
            )
    return notes


def _asked(run: Run) -> str:
    """Returns how many questions a run asked, and how they were drawn."""
    drawn = run.record.get("drawn")
    how = f" of {drawn.get('of')}, drawn by seed {drawn.get('seed')}" if isinstance(drawn, dict) else ""
    return f"{run.record.get('questions')}{how}"


def difference(first: Rows, second: Rows, metric: str = "em") -> Difference:
    """Returns the mean of first less second over the questions that both have, with its paired bootstrap interval.

    Args:
        first: Rows of one run.
        second: Rows of another run on the same questions.
        metric: Key of the rows.

    Raises:
        UsageError: The rows have no such key.
    """
    ids = sorted(id for id, row in first.items() if metric in row and metric in second.get(id, {}))
    if not ids:
        known = sorted({key for row in first.values() for key, value in row.items() if isinstance(value, float)})
        raise UsageError(f"no question has the score {metric!r} in both runs; there are {', '.join(known)}")
    gaps = np.array([first[id][metric] - second[id][metric] for id in ids], np.float64)
    low, high = bootstrap_ci(gaps)
    wins, losses = int((gaps > 0).sum()), int((gaps < 0).sum())
    return Difference(float(gaps.mean()), low, high, wins, losses, len(ids) - wins - losses)
