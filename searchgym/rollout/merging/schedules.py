"""Weights of checkpoints in an average, by the decay of the learning rate that they stand for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from searchgym.errors import UnknownNameError, UsageError

DECAYS: Final[dict[str, Callable[[float], float]]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""Shapes of a decay from 1 at x = 0 to 0 at x = 1, by name; ``sqrt`` is 1 - sqrt(x)."""


def scheduled(name: str, count: int) -> list[float]:
    """Returns the weights of checkpoints in a row whose average stands for a decay of the learning rate.

    Checkpoint i is the first one plus the updates up to it, so an average with weights c_0 .. c_k scales the updates
    between checkpoints i - 1 and i by ``w_i = c_i + ... + c_k``. Hence ``c_0 = 1 - w_1``, ``c_i = w_i - w_(i+1)`` and
    ``c_k = w_k``, with w_i the decay at x = i / (k + 1). ``mean`` gives all the same weight; so does ``linear``.

    Source: WSM, arXiv 2507.17634, which replaces the decay at the end of a training by an average of its checkpoints,
    by this relation. At which x the shapes are read is ours.

    Args:
        name: ``mean``, ``linear``, ``cosine`` or ``sqrt``.
        count: Number of checkpoints, from the earliest to the latest, at least 2.
    """
    if name != "mean" and name not in DECAYS:
        raise UnknownNameError("schedule", name, ["mean", *DECAYS])
    if name == "mean":
        return [1 / count] * count
    scales = [1.0, *(DECAYS[name](i / count) for i in range(1, count)), 0.0]
    return [one - after for one, after in itertools.pairwise(scales)]


def given_weights(text: str, count: int) -> list[float]:
    """Returns the weights that a user gave, ``0.2,0.3,0.5``, divided by their sum.

    Raises:
        UsageError: They are not one number of at least 0 per checkpoint, or all are 0.
    """
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != count or not all(w >= 0 for w in weights) or not 0 < sum(weights) < math.inf:
        expected = f"expected {count} numbers from 0 up with a finite sum above 0, such as 0.5,0.5"
        raise UsageError(f"--weights {text!r}: {expected}")
    return normalised(weights)


def normalised(weights: Sequence[float]) -> list[float]:
    """Returns weights divided by their sum."""
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]
