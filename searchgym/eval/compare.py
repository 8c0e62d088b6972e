"""Comparison of runs on the same questions: paired differences, with intervals over seeds and over questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.eval.run_folder import QUESTIONS, FinishedRun, QuestionRows
from searchgym.eval.scores import bootstrap_ci

SAME: Final = ("env", "questions_sha256", "scorer")
"""Fields of ``run.json`` that must be equal, so that the questions of two runs can be paired."""
TRACK: Final = (
    "corpus_sha256", "retriever", "top_k", "max_turns", "max_queries", "max_observation_words", "protocol", "browse",
    "snippet_words", "find", "cite", "token_budget", "faults", "sources", "dialect", "several_calls",
)  # fmt: skip
"""Fields of ``run.json`` that should be equal, so that a difference in scores is due to the agents or models."""


@dataclass(frozen=True)
class PairedDifference:
    """Mean of paired differences of a score, with its 95 % interval and the counts of wins, losses and ties."""

    mean: float
    low: float
    high: float
    wins: int
    """Number of questions in which the first run is better."""
    losses: int
    ties: int

    @property
    def verdict(self) -> str:
        """``"better"`` or ``"worse"``, or ``"not distinguishable"`` if the interval contains 0."""
        return "not distinguishable" if self.low <= 0 <= self.high else "better" if self.mean > 0 else "worse"

    def __str__(self) -> str:
        """Formats the mean with its interval, and the verdict if it is not distinguishable from 0."""
        note = f", {self.verdict}" if self.verdict == "not distinguishable" else ""
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f}){note}"


def check_comparable(runs: Sequence[FinishedRun]) -> list[str]:
    """Checks that runs have the same questions, and describes other differences that make a comparison unfair.

    Returns:
        One sentence for each field of `TRACK` in which a run differs from the first, and for hits that a model wrote.

    Raises:
        UsageError: The runs asked different questions, so that they cannot be paired; the message names the field.
    """
    first, notes = runs[0], []
    for run in runs[1:]:
        for field in SAME:
            if run.record.get(field) != first.record.get(field):
                values = f"{field} {first.record.get(field)!r} and {run.record.get(field)!r}"
                if field == "questions_sha256":
                    values += f" ({' and '.join(map(_question_count, (first, run)))})"
                raise UsageError(f"{first.name} and {run.name} asked different questions: {values}")
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
                f"{of}: a model wrote {max(written, retrieved):.0%} of its hits; the other run retrieved all hits"
            )
    return notes


def _question_count(run: FinishedRun) -> str:
    """Returns the number of questions of a run, and how they were drawn."""
    count, sample = run.record.get("questions"), run.record.get("drawn")
    how = f" of {sample.get('of')}, drawn by seed {sample.get('seed')}" if isinstance(sample, dict) else ""
    return f"{count}{how}"


def difference(first: QuestionRows, second: QuestionRows, metric: str = "em") -> PairedDifference:
    """Returns the mean of first minus second over their common questions, with a paired bootstrap interval.

    Args:
        first: Rows of one run.
        second: Rows of another run on the same questions.
        metric: Key of the rows.

    Raises:
        UsageError: The rows have no such key.
    """
    ids = sorted(id for id, row in first.items() if metric in row and metric in second.get(id, {}))
    if not ids:
        names = sorted({key for row in first.values() for key, value in row.items() if isinstance(value, float)})
        raise UsageError(f"no question has the score {metric!r} in both runs; the scores are {', '.join(names)}")
    gaps = np.array([first[id][metric] - second[id][metric] for id in ids], np.float64)
    low, high = bootstrap_ci(gaps)
    wins, losses = int((gaps > 0).sum()), int((gaps < 0).sum())
    return PairedDifference(float(gaps.mean()), low, high, wins, losses, len(ids) - wins - losses)


def t_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """Returns the 95 % interval of a mean by Student's t, for few values such as differences over paired seeds.

    Needs scipy, from the extra ``train``.

    Args:
        values: (n,) with n of 2 or more.

    Returns:
        (low, high).
    """
    from scipy.stats import t

    data = np.asarray(values, np.float64)
    half = float(t.ppf(0.975, len(data) - 1)) * data.std(ddof=1) / np.sqrt(len(data))
    return float(data.mean() - half), float(data.mean() + half)


def two_way_ci(values: npt.ArrayLike, resamples: int = 10_000) -> tuple[float, float]:
    """Returns the 95 % interval of a mean over seeds and questions, which generalises to new seeds and new questions.

    Seeds and questions are resampled independently with replacement (a two-way bootstrap; Owen, "The pigeonhole
    bootstrap", 2007). With few seeds this underestimates their variance; the interval is therefore at least as wide as
    Student's t over the seeds. With one seed it does not generalise to other seeds. Needs scipy, from the extra
    ``train``.

    Args:
        values: (seeds, questions), such as differences in EM between two methods, paired by seed and question.
        resamples: Number of resamples.

    Returns:
        (low, high).
    """
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(0)
    seeds, questions = data.shape
    means = np.empty(resamples)
    for draw in range(resamples):
        chosen = np.bincount(rng.integers(seeds, size=seeds), minlength=seeds) @ data
        means[draw] = chosen @ np.bincount(rng.integers(questions, size=questions), minlength=questions)
    means /= data.size
    low, high = map(float, np.quantile(means, [0.025, 0.975]))
    if seeds > 1:
        by_t = t_interval(data.mean(1))
        low, high = min(low, by_t[0]), max(high, by_t[1])
    return low, high
