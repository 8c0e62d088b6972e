"""Noise that follows a schedule over training steps: a growing probability, and random numbers for each query.

Source: the curriculum of ZeroSearch (Sun et al.), arXiv 2505.04588.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Final

from annotated_types import Interval
from typing_extensions import override

from searchgym.retrieval.cards import RetrieverCard

WORDS: Final = 2**64
"""Exclusive upper bound of the random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSchedule(RetrieverCard):
    """Base class of cards whose results are noise with a probability that grows during training."""

    start: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of noise at step 0. Outside of training it is always 0."""
    end: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Probability of noise from step `steps` on."""
    base: Annotated[float, Interval(ge=1e-6, le=1e6)] = 4.0
    """Base of the probability's exponential growth: above 1 it grows mostly late in training; 1 means linear growth."""
    steps: Annotated[int, Interval(ge=1, le=1e9)] | None = None
    """Step at which the probability reaches `end`. Default: the number of training steps."""
    seed: int = 0
    """Seed of the random draws."""

    @property
    @override
    def grows(self) -> bool:
        return (self.steps is None and self.start != self.end) or any(card.grows for card in self.inner)

    def probability(self, step: int | None, steps: int) -> float:
        """Returns the probability of noise at a step: ``start + (base**(i/m) - 1) / (base - 1) * (end - start)``.

        It is `start` at i = 0 and `end` from i = m on. For a base of 1 it is the limit, a straight line.

        Args:
            step: The step i, 0-based; None outside of training, where the probability is 0.
            steps: Number of training steps, which is m unless the schedule sets `steps`.
        """
        if step is None:
            return 0.0
        x = min(step / (self.steps or steps), 1.0)
        share = x if self.base == 1 else math.expm1(x * math.log(self.base)) / math.expm1(math.log(self.base))
        return self.start + share * (self.end - self.start)


def random_numbers(seed: int, step: int | None, query: str) -> Iterator[int]:
    """Yields uniform random numbers below 2**64: BLAKE2b in counter mode, with (seed, step, query) as the key.

    Outside of training (None) the step counts as -1.
    """
    text = f"{seed} {-1 if step is None else step} {query}"
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    for block in count():
        digest = hashlib.blake2b(block.to_bytes(8, "little"), key=key).digest()
        for at in range(0, len(digest), 8):
            yield int.from_bytes(digest[at : at + 8], "little")


def draw_noise(probability: float, numbers: Iterator[int]) -> bool:
    """Returns whether a query gets noise; draws a number only if the probability is above 0."""
    return probability > 0 and next(numbers) < probability * WORDS  # exact: p * 2**64 only moves the binary point
