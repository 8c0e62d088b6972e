"""Confidence intervals of means: by bootstrap over questions, by Student's t over seeds, and over both."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
"""Number of bootstrap resamples."""
BLOCK = 1 << 22
"""Number of values that are resampled at once."""


def bootstrap_ci(values: npt.ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> list[float]:
    """Returns the 95 % percentile bootstrap interval of a mean (Efron and Tibshirani 1993, chapter 13).

    Args:
        values: (n,) one value per question, in a fixed order (sorted by id), so that the interval is deterministic.
        seed: Seed of the resampling.
        resamples: Number of resamples.

    Returns:
        [low, high]; both are the mean if all values are equal.
    """
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(data))  # the generator gives the same numbers in blocks as one by one
    sizes = [min(rows, resamples - at) for at in range(0, resamples, rows)]
    means = np.concatenate([data[rng.integers(len(data), size=(size, len(data)))].mean(axis=1) for size in sizes])
    low, high = np.quantile(means, (0.025, 0.975))
    return [float(low), float(high)]


def t_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """Returns the 95 % interval of a mean by Student's t, for few values such as differences over paired seeds.

    Needs scipy, of the ``train`` extra.

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
    """Returns the 95 % interval of a mean over seeds and questions, for other seeds and other questions alike.

    Seeds and questions are drawn with replacement, each on its own (a two-way bootstrap; Owen, "The pigeonhole
    bootstrap", 2007). Few seeds vary less than their source when they are drawn so; the interval is therefore at least
    as wide as Student's t over the seeds. With one seed it says nothing of other seeds. Needs scipy, of the ``train``
    extra.

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
