"""Rubrics as data, and the scores that are made of a judge's verdicts on them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import CardError, DataError
from searchgym.options import read
from searchgym.records import Question
from searchgym.scoring import golds_with_words, normalise_answer
from searchgym.scoring.judges.judge import Checked, Criterion

RUBRIC: Final = "rubric"
"""Key of a question's metadata with the criteria of its answer, as a list of mappings (the fields of `Criterion`)."""
WANTED: Final = "wanted"
"""Key of a question's metadata with all answers that are wanted: a list of lists of accepted spellings."""
PART_SEPARATOR: Final = ";"
"""Text between the parts of an answer that gives several; the end of a line separates them too."""


def rubric_of(question: Question) -> tuple[Criterion, ...]:
    """Returns the criteria by which answers to a question are judged.

    Without a rubric in its metadata there is one: that the answer gives a gold answer.

    Raises:
        DataError: The rubric is not a list of criteria; the message names the question and the key.
    """
    given = question.metadata.get(RUBRIC)
    if given is None:
        return (Criterion(f"It gives the answer {question.answers[0]!r}.", (tuple(golds_with_words(question.golds)),)),)
    where = f"question {question.id!r}: {RUBRIC}"
    if not isinstance(given, (list, tuple)) or not given:
        raise DataError(f"{where}: expected a list of criteria such as {{text: ..., says: [[...]]}}, got {given!r:.80}")
    try:
        return tuple(read(Criterion, row, f"{where}[{number}]") for number, row in enumerate(given))
    except CardError as error:
        raise DataError(str(error)) from None


def wanted_of(question: Question) -> list[tuple[str, ...]]:
    """Returns all answers that a question wants, each with its accepted spellings; without a list, its one answer.

    Raises:
        DataError: The metadata has something other than a list of lists of texts.
    """
    given: Any = question.metadata.get(WANTED)
    if given is None:
        return [question.golds]
    rows: list[Any] = list(given) if isinstance(given, (list, tuple)) else [None]
    if not rows or not all(
        isinstance(row, (list, tuple)) and row and all(isinstance(name, str) for name in row) for row in rows
    ):
        raise DataError(f"question {question.id!r}: {WANTED}: expected [[name, other name], ...], got {given!r:.80}")
    return [tuple(row) for row in rows]


def parts_of(answer: str) -> list[str]:
    """Returns the parts of an answer that gives several, separated by semicolons or lines, without empty ones."""
    return [part.strip() for line in answer.splitlines() for part in line.split(PART_SEPARATOR) if part.strip()]


def coverage(answer: str, wanted: Sequence[Sequence[str]]) -> float:
    """Returns the F1 between the parts of an answer and the wanted answers, each found by exact match of one part.

    A part that gives a wanted answer a second time counts as wrong, so that repeating and listing earn nothing. Ours;
    papers with several answers score sets in this way (ASQA, QAMPARI).
    """
    left = [{normalise_answer(name) for name in names} for names in wanted]
    parts = [normalise_answer(part) for part in parts_of(answer)]
    found = 0
    for part in parts:
        place = next((n for n, names in enumerate(left) if part and part in names), None)
        if place is not None:
            left.pop(place)
            found += 1
    return 2 * found / (len(parts) + len(wanted)) if found else 0.0


def weighted_share(passed: Sequence[bool], criteria: Sequence[Criterion]) -> float:
    """Returns the share of a rubric's weight that an answer passes.

    Source: DR-Rubric, arXiv 2606.01091, ``R = 1/|R_p| sum_c J_c(x)`` (read in notes on it); the weights are ours.
    """
    whole = math.fsum(criterion.weight for criterion in criteria)
    return math.fsum(c.weight for c, good in zip(criteria, passed, strict=True) if good) / whole


def gated(passed: Sequence[bool], criteria: Sequence[Criterion], legal: float, delta: float) -> float:
    """Returns the product of a gate and the weighted share of the criteria that are no bottom lines.

    The gate is the delta-smoothed geometric mean of the n bottom-line scores b, the share of legal calls among them:
    ``(prod (b_i + delta))^(1/n) - delta``. It is 1 if all are 1, and near 0 if one is 0: then nothing else counts. An
    answer that passes no criterion, as an empty one, scores 0 however legal its calls were, which is ours.

    Source: SearchLLM, arXiv 2603.10473 (read in notes on it): a gate of factuality, quality and format times a weighted
    mean of behaviours. That the smoothing has this form, and delta, are inferred.

    Args:
        passed: Whether the answer passes each criterion.
        criteria: The rubric.
        legal: Share of the episode's calls that had the form their role asks for, in [0, 1].
        delta: Smoothing, above 0.
    """
    if not any(passed):
        return 0.0
    bottom = [float(good) for c, good in zip(criteria, passed, strict=True) if c.bottom] + [legal]
    gate = math.exp(math.fsum(math.log(score + delta) for score in bottom) / len(bottom)) - delta
    rest = [(good, c) for c, good in zip(criteria, passed, strict=True) if not c.bottom]
    return gate * weighted_share([good for good, _ in rest], [c for _, c in rest]) if rest else gate


def best_of_candidates(rows: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Returns the mean over weightings of the best candidate's weighted reward, ``mean_w max_y w . r(y)``.

    A set of candidates is rewarded for covering what different weightings ask for, not for one compromise.

    Source: VPO, arXiv 2605.22817 (read in notes on it), its set reward with w drawn from a Dirichlet distribution.

    Args:
        rows: (M, D) rewards of M candidates, at least 1, each a vector.
        weights: (W, D) weightings, each at least 0 with sum 1; the same for all sets of one question.
    """
    return float((weights @ rows.T).max(axis=1).mean())


def weightings(question_id: str, size: int, draws: int) -> npt.NDArray[np.float64]:
    """Returns weightings of a question's criteria, (draws, size) float64: Dirichlet(1), drawn from the id alone."""
    digest = hashlib.blake2b(question_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    drawn: npt.NDArray[np.float64] = np.random.default_rng(int.from_bytes(digest, "little")).dirichlet(
        np.ones(size), draws
    )
    return drawn


def rubric_score(judge: Checked, question: Question, answer: str) -> float:
    """Returns the share of its rubric's weight that an answer passes, in [0, 1].

    Raises:
        NoVerdictError: The judge gave no verdict.
    """
    criteria = rubric_of(question)
    return weighted_share(judge.passes(question.text, answer, criteria), criteria)
