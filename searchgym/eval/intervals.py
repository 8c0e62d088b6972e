"""Confidence intervals of means: by bootstrap over questions, by Student's t over seeds."""

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
