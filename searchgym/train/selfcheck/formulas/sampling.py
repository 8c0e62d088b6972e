"""What a model says of tokens, and whether these were drawn from its distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from searchgym.train.selfcheck.formulas.advantages import Floats


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model says of the trained tokens of some samples: one array per sample, in float64."""

    logp: list[Floats]
    """Log-probs of the tokens."""
    entropy: list[Floats]
    """Entropies of the distributions that they were drawn from."""
    variance: list[Floats]
    """Variances of the log-prob of a token drawn from these distributions."""
    quantile: list[Floats]
    """Distances of the tokens' quantiles in their distributions from the mean, 0, in order of ids."""
    ranked: list[Floats]
    """The same in order of falling probability."""


def departures(seen: Seen) -> list[tuple[float, str]]:
    """Returns how far tokens are from chance, in standard deviations, and what that is said of.

    On average they are as unlikely as their distributions make them, and neighbours do not depend on each other.
    """
    surprise = -np.concatenate(seen.logp) - np.concatenate(seen.entropy)
    deviation = float(np.sqrt(np.concatenate(seen.variance).clip(0).sum()))
    off = float(surprise.sum()) / max(deviation, 1e-9)
    found = [(off, f"{len(surprise)} tokens, {off:+.1f} standard deviations less likely than expected")]
    for rows in (seen.quantile, seen.ranked):
        pairs = np.concatenate([row[1:] * row[:-1] for row in rows])
        off = float(pairs.sum()) / max(float(np.sqrt(np.square(pairs).sum())), 1e-9)
        found.append((off, f"neighbouring tokens depend on each other by {off:+.1f} standard deviations"))
    return found


def shortfalls(logits: Tensor, ids: Tensor, told: Tensor, temperature: float) -> list[tuple[float, float, float]]:
    """Returns how far each token is below the likeliest one, and how far the log-prob that was told of it is off.

    Args:
        logits: (n, V) float64 logits.
        ids: (n,) tokens.
        told: (n,) log-probs by the sampler.
        temperature: Temperature of the recipe.

    Returns:
        (short of the likeliest, off at temperature 1, off at the recipe's) in nats.
    """
    chosen = logits.gather(1, ids[:, None])[:, 0]
    off = [(torch.log_softmax(logits / heat, -1).gather(1, ids[:, None])[:, 0] - told) for heat in (1.0, temperature)]
    return list(zip((logits.max(-1).values - chosen).tolist(), *(part.abs().tolist() for part in off), strict=True))


def mean_gap(one: Sequence[Floats], other: Sequence[Any]) -> float:
    """Returns the mean absolute difference over all tokens of all samples."""
    gaps = [np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) for a, b in zip(one, other, strict=True)]
    every = np.concatenate([np.zeros(0), *gaps])
    return float(every.mean()) if len(every) else 0.0
