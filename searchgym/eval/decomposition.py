"""Decomposition of a difference in EM between two runs: answers at all, evidence, reading, memory and wording.

For each run, with probabilities over its episodes,

    EM = P(answered) * sum over e of P(e | answered) * P(contains | answered, e) * P(exact | answered, e, contains)

where e tells whether all, some or none of the gold pages were found. An exact answer counts as one that contains a gold
answer, so this holds exactly. From the first run to the second, one factor changes at a time, in the order of the
formula; the change in EM is the factor's term, and the terms add up to the difference. A probability without any case
in one run has the other run's value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import SearchGymError, UsageError
from searchgym.eval.compare import t_interval
from searchgym.eval.run_folder import FinishedRun, QuestionRows
from searchgym.scoring import word_cover_match

FACTORS: Final = {
    "answered": "ends with an answer",
    "searching": "gold pages among hits",
    "reading": "right with gold pages",
    "memory": "right without any",
    "wording": "right word for word",
}
"""Factors in the order in which they change, with their meanings; *right* is an answer that contains a gold answer."""
SUMS: Final = {"form": "answered and wording", "difference": "sum of the terms"}
"""Sums of terms, with their meanings."""
HEAD: Final = ("term", "meaning", "EM", "95 % low", "high", "least", "most")
"""Heads of the table whose cells `Decomposition.rows` returns."""
EVIDENCE: Final = ("all", "some", "none")
"""Values of `searchgym.eval.evidence.evidence_of`."""
CELLS: Final = 1 + 3 * len(EVIDENCE)
"""Number of kinds of episodes: unanswered; then for each evidence: exact, only containing a gold answer, another."""
ORDER_MATTERS: Final = 0.01
"""Range of a term over all orders of the factors above which `Decomposition.rows` tells its ends."""
ADDED: Final = np.vstack([np.eye(5), [1, 0, 0, 0, 1], np.ones(5)])
"""(7, 5) summands of each row: the terms themselves, then `SUMS`."""
Floats = npt.NDArray[np.float64]
Shares = Mapping[str, Floats | None]
"""Question id to the share of its attempts in each of `CELLS`, (10,); None for a question that names no gold pages."""


@dataclass(frozen=True)
class EmTerm:
    """Part of a difference in EM that one factor explains, or a sum of such parts."""

    mean: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    least: float
    """Smallest value over all orders in which the factors may change."""
    most: float


@dataclass(frozen=True)
class Decomposition:
    """Terms of the difference in EM of a second run to a first one."""

    questions: int
    """Number of questions that the terms are about."""
    without_golds: int
    """Number of further questions, which name no gold pages."""
    first: float
    """EM of the first run on these questions."""
    second: float
    terms: Mapping[str, EmTerm]
    """Terms by factor, in the order of `FACTORS`, then their sums: ``form`` and ``difference``."""
    residual: float
    """Difference in EM less the sum of the terms, which is 0 up to rounding."""

    @property
    def scope(self) -> str:
        """Describes the questions."""
        aside = f"; {self.without_golds} that name no gold pages are left out" if self.without_golds else ""
        return f"{self.questions} question{'s' * (self.questions != 1)}{aside}"

    def rows(self) -> list[list[str]]:
        """Returns the cells of a table with the heads `HEAD`: the terms, their sums and the residual."""
        rows = []
        for name, meaning in (FACTORS | SUMS).items():
            term = self.terms[name]
            ends = [term.least, term.most] if term.most - term.least > ORDER_MATTERS else []
            cells = [*map(_signed, [term.mean, term.low, term.high, *ends]), "", ""]
            rows.append([name, meaning, *cells[:5]])
        return [*rows, ["residual", "difference less sum", _signed(self.residual), "", "", "", ""]]


def _signed(value: float) -> str:
    """Formats a difference with its sign; 0 has none."""
    return "0.0000" if abs(value) < 5e-5 else f"{value:+.4f}"


def decompose(
    first: Sequence[QuestionRows], second: Sequence[QuestionRows], resamples: int = 1000, seed: int = 0
) -> Decomposition:
    """Decomposes the difference in EM between two methods on the same questions.

    Intervals are percentile bootstrap intervals: questions are resampled in pairs. With several seeds these are
    resampled too, and an interval is at least as wide as Student's t over the terms of each seed (which needs scipy,
    from the extra ``train``); see `searchgym.eval.compare.two_way_ci`.

    Args:
        first: Rows of the first method's runs, one for each seed.
        second: Rows of the second method's runs, in the same order of seeds.
        resamples: Number of resamples.
        seed: Seed of the resampling.

    Raises:
        UsageError: The sides differ in their number of runs, rows lack what is needed, or no question names gold pages.
    """
    if not first or len(first) != len(second):
        raise UsageError(f"expected one run of each seed on both sides, got {len(first)} and {len(second)} runs")
    sides = [
        [shares_of(rows, f"run {number} of the {side} side") for number, rows in enumerate(runs, start=1)]
        for side, runs in (("first", first), ("second", second))
    ]
    return _decomposed(sides, resamples, seed)


def decompose_runs(runs: Sequence[FinishedRun]) -> tuple[dict[int, Decomposition], list[str]]:
    """Decomposes the differences in EM of runs to the first of them.

    Returns:
        Decompositions by the run's index, and sentences on why there is none.
    """
    parts: dict[int, Decomposition] = {}
    notes: dict[str, None] = {}
    base: Shares = {}
    for number, run in enumerate(runs if any("em" in row for row in runs[0].rows.values()) else ()):
        try:
            shares = shares_of(run.rows, run.name)
            if number:
                parts[number] = _decomposed([[base], [shares]])
            else:
                base = shares
        except UsageError as error:
            notes[f"the difference in EM is not decomposed: {error}"] = None
            if not number:
                break
    return parts, list(notes)


# -- rows of questions to cells ------------------------------------------------------------------------------------


def shares_of(rows: QuestionRows, name: str) -> Shares:
    """Returns the share of each question's attempts in each of `CELLS`, for the questions that have an EM.

    Raises:
        UsageError: A row lacks what is needed; the message begins with `name`.
    """
    shares: dict[str, Floats | None] = {}
    for id, row in rows.items():
        if "em" in row:
            try:
                shares[id] = None if row["evidence"] is None else _shares(row)
            except (KeyError, TypeError, ValueError, SearchGymError) as error:
                problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                remedy = "`searchgym eval` with --resume and --out writes this row again"
                raise UsageError(f"{name}: question {id!r:.60}: {problem}; {remedy}") from error
    return shares


def _shares(row: Mapping[str, Any]) -> Floats:
    """Returns the share of the attempts at one question in each of `CELLS`."""
    answers, evidence, golds, em = (row[name] for name in ("answers", "evidence", "golds", "em"))
    exact = row.get("exact", [em] if len(answers) == 1 else None)
    if exact is None:
        raise KeyError("exact")  # several attempts in a row of an earlier version: it does not tell which were right
    if not answers:
        raise ValueError("no attempt")
    shares = np.zeros(CELLS)
    for answer, pages, right in zip(answers, evidence, exact, strict=True):
        legal = isinstance(answer, str | None) and pages in EVIDENCE and right in ((0,) if answer is None else (0, 1))
        if not legal:
            got = ", ".join(f"{value!r:.60}" for value in (answer, pages, right))
            raise ValueError(f"expected an answer, its evidence and whether it is exact, got {got}")
        cell = 0
        if answer is not None:
            kind = 0 if right else 1 if word_cover_match(answer, golds) else 2
            cell = 1 + 3 * EVIDENCE.index(pages) + kind
        shares[cell] += 1 / len(answers)
    return shares


# -- cells to terms ------------------------------------------------------------------------------------------------


def _decomposed(sides: Sequence[Sequence[Shares]], resamples: int = 1000, seed: int = 0) -> Decomposition:
    """Decomposes the difference between two sides, each with a run for every seed."""
    runs = [run for side in sides for run in side]
    scored = sorted(set(runs[0]).intersection(*runs[1:]))
    ids = [id for id in scored if all(run[id] is not None for run in runs)]
    if not ids:
        raise UsageError("none of the questions names its gold pages")
    shares = np.array([[[run[id] for id in ids] for run in side] for side in sides], np.float64)
    first, second = shares.mean(axis=(1, 2))
    mixtures = _mixtures(first, second, range(1 << len(FACTORS)))
    means = ADDED @ _terms(first, second)
    low, high = _intervals(shares, means, resamples, np.random.default_rng(seed))
    orders = ADDED @ _over_orders(mixtures)
    columns = zip(means, low, high, orders.min(axis=1), orders.max(axis=1), strict=True)
    terms = {name: EmTerm(*map(float, column)) for name, column in zip(FACTORS | SUMS, columns, strict=True)}
    em = shares[..., 1::3].sum(-1).mean(axis=(1, 2))  # counted, not multiplied: the residual tests the identity
    residual = float(em[1] - em[0] - means[: len(FACTORS)].sum())
    return Decomposition(len(ids), len(scored) - len(ids), float(em[0]), float(em[1]), terms, residual)


def _intervals(shares: Floats, means: Floats, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Returns the ends (7,) of the 95 % intervals of terms and their sums, given cells (2, seeds, questions, 10)."""
    resampled = ADDED @ _terms(*_resampled(shares, resamples, rng))
    low, high = np.quantile(resampled, (0.025, 0.975), axis=1)
    if shares.shape[1] > 1:
        # Student's t lies around the terms of all seeds together, which are not the means of the terms of each.
        of_seeds = np.array([t_interval(values) for values in ADDED @ _terms(*shares.mean(axis=2))])
        half = (of_seeds[:, 1] - of_seeds[:, 0]) / 2
        low, high = np.minimum(low, means - half), np.maximum(high, means + half)
    return low, high


def _terms(first: Floats, second: Floats) -> Floats:
    """Returns the terms (5, ...) of the difference between cells (..., 10), in the order of `FACTORS`."""
    return np.diff(_mixtures(first, second, _steps(range(len(FACTORS)))), axis=0)


def _steps(order: Iterable[int]) -> list[int]:
    """Returns the sets of factors that have changed, as bits, before the first step of an order and after each."""
    return list(itertools.accumulate((1 << factor for factor in order), initial=0))


def _over_orders(mixtures: Floats) -> Floats:
    """Returns the terms (5, 120) by each order of the factors, given EM (32,) by the set of changed factors."""
    terms = []
    for order in itertools.permutations(range(len(FACTORS))):
        steps = np.diff(mixtures[_steps(order)])
        terms.append(steps[np.argsort(order)])
    return np.array(terms).T


def _mixtures(first: Floats, second: Floats, changed: Iterable[int]) -> Floats:
    """Returns EM with some factors of the second run and the others of the first.

    Args:
        first: (..., 10) cells of the first run.
        second: (..., 10) cells of the second run.
        changed: Sets of the factors of the second run, as bits.

    Returns:
        (sets, ...).
    """
    pairs = [(_either(a, b), _either(b, a)) for a, b in zip(_factors(first), _factors(second), strict=True)]
    rows = []
    for bits in changed:
        answered, evidence, reading, memory, wording = (pair[bits >> n & 1] for n, pair in enumerate(pairs))
        contains = np.concatenate([reading, memory], axis=-1)
        rows.append(answered[..., 0] * (evidence * contains * wording).sum(-1))
    return np.array(rows)


def _factors(cells: Floats) -> tuple[Floats, ...]:
    """Returns the factors of runs with the cells (..., 10) as (..., 1), (..., 3), (..., 2), (..., 1) and (..., 3).

    A probability without any case is NaN.
    """
    kinds = cells[..., 1:].reshape(*cells.shape[:-1], len(EVIDENCE), 3)
    answers, contained, exact = kinds.sum(-1), kinds[..., :2].sum(-1), kinds[..., 0]
    answered = answers.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        share, evidence = answered / cells.sum(-1, keepdims=True), answers / answered
        contains, wording = contained / answers, exact / contained
    return share, evidence, contains[..., :2], contains[..., 2:], wording


def _either(factor: Floats, other: Floats) -> Floats:
    """Returns a factor; where it has no case, that of the other run, and 0 if neither has one."""
    return np.where(np.isnan(factor), np.nan_to_num(other), factor)


def _resampled(shares: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Returns cells (2, resamples, 10) of resampled questions and seeds, given those of each (2, seeds, questions, 10).

    Questions with the same cells in all runs are drawn together, which gives the same distribution.
    """
    _, seeds, questions, _ = shares.shape
    kinds, counts = np.unique(np.moveaxis(shares, 2, 0).reshape(questions, -1), axis=0, return_counts=True)
    by_seed = rng.multinomial(questions, counts / questions, size=resamples) @ kinds / questions
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    cells: Floats = np.einsum("rs,rmsc->mrc", of_seeds, by_seed.reshape(resamples, 2, seeds, CELLS))
    return cells
