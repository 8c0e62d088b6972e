"""A retriever that now and then finds passages drawn at random, more often as training goes on.

After ZeroSearch's curriculum (Sun et al., arXiv 2505.04588): a policy that learns to doubt what it reads
needs searches that fail. There a model writes the noise; here it is passages of the corpus.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from searchgym.corpora.retrieval.retriever import Retriever
from searchgym.corpora.retrieval.wrappers.wrapper import Wrapper
from searchgym.errors import UsageError
from searchgym.records import Hit, Passage

_WORDS = 2**64  # a number drawn is below


class NoiseRetriever(Wrapper):
    """Replaces, with some probability by query, all hits by as many passages of the corpus, drawn at random.

    What is drawn are distinct passages, none of them among the hits; they have the scores of those in whose place they
    stand. A query without hits stays without; so does what a corpus is too small for.

    Whether a query is replaced, and by what, is a function of (seed, step, query) alone: it depends neither on what
    else is in a batch nor on threads, nor on which episode asks first. So all who ask the same in one step get the
    same, and another step draws anew.

    Args:
        inner: A retriever over a corpus that is at hand.
        start: Probability at step 0; outside of training, in evaluations say, there is none.
        end: Probability from step `steps` on.
        base: Steepness, above 0: over 1 the probability grows late; 1 is a straight line.
        steps: Step that has `end`; where None it is the number of steps of the training, whose last step, counted
            from 0, comes just before.
        seed: Of what is drawn.

    Raises:
        UsageError: `inner` has no corpus at hand, or a number is out of range.
    """

    def __init__(
        self,
        inner: Retriever,
        *,
        start: float = 0.0,
        end: float = 0.5,
        base: float = 4.0,
        steps: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(inner)
        if not hasattr(self, "passage"):
            raise UsageError(f"noise is drawn from the corpus: {type(inner).__name__} has none at hand")
        if not (0 <= start <= 1 and 0 <= end <= 1 and 0 < base < math.inf and (steps is None or steps >= 1)):
            raise UsageError(
                "start and end are from 0 to 1, base above 0, steps at least 1: got "
                f"start={start!r}, end={end!r}, base={base!r}, steps={steps!r}"
            )
        self.start, self.end, self.base, self.steps, self.seed = start, end, base, steps, seed
        self.changes_by_step = True
        self.asked = 0
        """Queries so far."""
        self.noisy = 0
        """Those of them whose hits were replaced."""
        self._now: tuple[int, float] = (-1, 0.0)  # step, -1 outside training, and probability
        self._lock = threading.Lock()

    def at_step(self, step: int | None, steps: int) -> None:
        """Sets the probability: that of a step of training, or none for validation.

        Args:
            step: 0-based; None for validation.
            steps: Steps of the training in all.
        """
        super().at_step(step, steps)
        if step is None:
            self._now = (-1, 0.0)
        else:
            self._now = (step, probability(step, self.steps or steps, self.start, self.end, self.base))

    @property
    def probability(self) -> float:
        """The present one."""
        return self._now[1]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query: those of `inner`, or noise in their place."""
        step, p = self._now
        found = self.inner[0].search(queries, k)
        results, noisy = [], 0
        for query, hits in zip(queries, found, strict=True):
            numbers = _numbers(self.seed, step, query)
            replace = p > 0 and next(numbers) < p * _WORDS  # exact: p * 2**64 only moves the binary point
            noisy += replace
            results.append(self._noise(hits, numbers) if replace else hits)
        with self._lock:
            self.asked += len(results)
            self.noisy += noisy
        return results

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus and the step."""
        own = {name: getattr(self, name) for name in ("start", "end", "base", "steps", "seed")}
        return {"kind": "noise"} | own | super().identity()

    def _noise(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        """Returns as many passages as there are hits, none of them among these, with their scores."""
        taken = {hit.passage.id for hit in hits}
        others: list[Passage] = []
        while len(others) < min(len(hits), len(self) - len(hits)):
            passage = self.passage(next(numbers) * len(self) // _WORDS)
            if passage.id not in taken:
                taken.add(passage.id)
                others.append(passage)
        return [Hit(other, hit.score) for other, hit in zip(others, hits, strict=False)]


def probability(step: int, steps: int, start: float, end: float, base: float) -> float:
    """Returns the probability of noise at a step: ``start + (base**(i/m) - 1) / (base - 1) * (end - start)``.

    It is `start` at i = 0 and `end` from i = m on; a straight line for a base of 1, which is the limit.

    Args:
        step: i, 0-based.
        steps: m.
        start: At step 0.
        end: At step m and later.
        base: Above 0.
    """
    x = min(step / steps, 1.0)
    share = x if base == 1 else math.expm1(x * math.log(base)) / math.expm1(math.log(base))
    return start + share * (end - start)


def _numbers(seed: int, step: int, query: str) -> Iterator[int]:
    """Yields numbers below 2**64, all alike likely: BLAKE2b in counter mode, with (seed, step, query) as the key."""
    key = hashlib.blake2b(f"{seed} {step} {query}".encode("utf-8", "surrogatepass"), digest_size=32).digest()
    for block in count():
        digest = hashlib.blake2b(block.to_bytes(8, "little"), key=key).digest()
        for at in range(0, len(digest), 8):
            yield int.from_bytes(digest[at : at + 8], "little")
