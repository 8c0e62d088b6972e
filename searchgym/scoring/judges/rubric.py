"""Rubrics of questions, and scores computed from a judge's verdicts on them."""

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
from searchgym.scoring.confidence import parts_of
from searchgym.scoring.judges.judge import Checked, Criterion

RUBRIC: Final = "rubric"
"""Metadata key of a question's criteria, a list of mappings with the fields of `Criterion`."""
WANTED: Final = "wanted"
"""Metadata key of a question's full set of answers, a list of lists of accepted spellings."""


def rubric_of(question: Question) -> tuple[Criterion, ...]:
    """Returns the rubric of a question.

    Without a rubric in its metadata, the only criterion is that the answer gives a gold answer, in any spelling.

    Raises:
        DataError: The rubric is not a list of criteria; the message names the question and the key.
    """
    rows = question.metadata.get(RUBRIC)
    if rows is None:
        golds = tuple(golds_with_words(question.golds))
        spellings = " or ".join(map(repr, golds or question.golds))
        return (Criterion(f"It gives the answer {spellings}.", (golds,)),)
    where = f"question {question.id!r}: {RUBRIC}"
    if not isinstance(rows, (list, tuple)) or not rows:
        raise DataError(f"{where}: expected a list of criteria such as {{text: ..., says: [[...]]}}, got {rows!r:.80}")
    try:
        return tuple(read(Criterion, row, f"{where}[{number}]") for number, row in enumerate(rows))
    except CardError as error:
        raise DataError(str(error)) from None


def wanted_of(question: Question) -> list[tuple[str, ...]]:
    """Returns all answers that a complete response must give, each with its accepted spellings; by default one answer.

    Raises:
        DataError: The metadata value is not a list of lists of texts.
    """
    metadata: Any = question.metadata.get(WANTED)
    if metadata is None:
        return [question.golds]
    rows: list[Any] = list(metadata) if isinstance(metadata, (list, tuple)) else [None]
    if not rows or not all(
        isinstance(row, (list, tuple)) and row and all(isinstance(name, str) for name in row) for row in rows
    ):
        raise DataError(f"question {question.id!r}: {WANTED}: expected [[name, other name], ...], got {metadata!r:.80}")
    return [tuple(row) for row in rows]


def coverage(answer: str, golds: Sequence[Sequence[str]]) -> float:
    """Returns the F1 between the parts of an answer and the gold answers, matched one to one by exact match.

    A repeated gold answer counts as wrong, so repeating and listing earn nothing. The definition is ours; data sets
    with several answers are scored similarly (ASQA, QAMPARI).
    """
    left = [{normalise_answer(name) for name in names} for names in golds]
    parts = [normalise_answer(part) for part in parts_of(answer)]
    matches = 0
    for part in parts:
        index = next((n for n, names in enumerate(left) if part and part in names), None)
        if index is not None:
            left.pop(index)
            matches += 1
    return 2 * matches / (len(parts) + len(golds)) if matches else 0.0


def weighted_share(passed: Sequence[bool], criteria: Sequence[Criterion]) -> float:
    """Returns the weight of the passed criteria as a fraction of the rubric's total weight.

    Source: DR-Rubric, arXiv 2606.01091, ``R = 1/|R_p| sum_c J_c(x)`` (read in notes on it); the weights are ours.
    """
    whole = math.fsum(criterion.weight for criterion in criteria)
    return math.fsum(c.weight for c, good in zip(criteria, passed, strict=True) if good) / whole


def gated(passed: Sequence[bool], criteria: Sequence[Criterion], legal: float, delta: float) -> float:
    """Returns the product of a gate and the weighted share of the criteria other than bottom lines.

    The gate is the delta-smoothed geometric mean of n scores b, those of the bottom lines and the share of legal calls:
    ``(prod (b_i + delta))^(1/n) - delta``. It is 1 if all are 1, and about delta^(1/n) if one is 0. An answer that
    passes no criterion, such as an empty one, scores 0 even if all calls were legal; this rule is ours.

    Source: SearchLLM, arXiv 2603.10473 (read in notes on it): a gate of factuality, quality and format times a weighted
    mean of behaviours. That the smoothing has this form, and delta, are inferred.

    Args:
        passed: Whether the answer passes each criterion.
        criteria: The rubric.
        legal: Fraction of the episode's calls whose output their role's parser accepted, in [0, 1].
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

    A set of candidates is rewarded for having a good candidate under each weighting, not for one compromise.

    Source: VPO, arXiv 2605.22817 (read in notes on it), its set reward with w drawn from a Dirichlet distribution.

    Args:
        rows: (M, D) float64 reward vectors of M >= 1 candidates.
        weights: (W, D) float64 weightings, nonnegative with row sums of 1; the same for all sets of one question.
    """
    return float((weights @ rows.T).max(axis=1).mean())


def weightings(question_id: str, size: int, draws: int) -> npt.NDArray[np.float64]:
    """Returns (draws, size) float64 weightings of criteria, sampled from Dirichlet(1) with the question id as seed."""
    digest = hashlib.blake2b(question_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    weights: npt.NDArray[np.float64] = np.random.default_rng(int.from_bytes(digest, "little")).dirichlet(
        np.ones(size), draws
    )
    return weights


def rubric_score(judge: Checked, question: Question, answer: str) -> float:
    """Returns an answer's score on the question's rubric, in [0, 1]; see `weighted_share`.

    Raises:
        NoVerdictError: The judge failed to give a verdict.
    """
    criteria = rubric_of(question)
    return weighted_share(judge.passes(question.text, answer, criteria), criteria)
