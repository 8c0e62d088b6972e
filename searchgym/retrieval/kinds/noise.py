"""Retriever ``noise``: another one that sometimes returns random passages, more often as training goes on.

It follows the curriculum of ZeroSearch (Sun et al., arXiv 2505.04588): a policy learns to doubt what it reads only if
some searches fail. ZeroSearch's noise is written by a model; here it consists of passages of the corpus.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval

from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import Retriever, check_request
from searchgym.retrieval.schedule import WORDS, ScheduledCard, probability, random_numbers
from searchgym.retrieval.wrapper import Wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCard(ScheduledCard):
    """Another retriever whose hits are sometimes replaced by random passages, more often as training goes on."""

    of: RetrieverCard
    """Card of the retriever whose hits are replaced."""
    mixed_in: Annotated[int, Interval(ge=0, le=1e9)] = 0
    """Number of random passages that stand at random ranks among the hits of every query, in evaluations too."""

    def open(self, sources: Sources) -> NoiseRetriever:
        """See `RetrieverCard.open`."""
        options = {name: getattr(self, name) for name in ("start", "end", "base", "steps", "seed", "mixed_in")}
        return NoiseRetriever(sources.open(self.of), **options)


class NoiseRetriever(Wrapper):
    """Retriever that replaces, with some probability, all hits of a query by random passages of the corpus.

    The random passages are distinct, and none of them is among the hits that they replace, whose scores they get. A
    query without hits stays without. A corpus with too few other passages gives as many as it has.

    Whether a query is replaced, and by which passages, depends only on (seed, step, query), not on the rest of the
    batch, on threads or on the order of episodes. So within one step equal queries get equal hits, and the next step
    draws again.

    With `mixed_in`, that many random passages also stand at random ranks among the hits of every query, in evaluations
    too, so that there is something to rank (ours). They take the place of the last hits.

    Args:
        inner: Wrapped retriever, whose corpus is on this machine.
        start: Probability at step 0. Outside of training, in evaluations say, it is always 0.
        end: Probability from step `steps` on.
        base: Base of the exponential growth, above 0: above 1 the probability grows late; 1 gives a straight line.
        steps: Step at which the probability reaches `end`. Default: the number of training steps, which is one more
            than the number of the last step, counted from 0.
        seed: Seed of the random draws.
        mixed_in: Number of random passages among the hits of every query. Default: none.

    Raises:
        UsageError: `inner` has no corpus on this machine, or a number is out of range.
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
        mixed_in: int = 0,
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
        if mixed_in < 0:
            raise UsageError(f"mixed_in is {mixed_in}: expected a number of passages, from 0 on")
        self.mixed_in = mixed_in
        self.changes_by_step = True
        self.asked = 0
        """Number of queries so far."""
        self.noisy = 0
        """Number of queries so far whose hits were replaced."""
        self._now: tuple[int, float] = (-1, 0.0)  # (step, or -1 outside of training; probability)
        self._lock = threading.Lock()

    def at_step(self, step: int | None, steps: int) -> None:
        """Sets the probability for a step of training, or to 0 for validation.

        Args:
            step: 0-based step of training; None for validation.
            steps: Number of training steps.
        """
        super().at_step(step, steps)
        if step is None:
            self._now = (-1, 0.0)
        else:
            self._now = (step, probability(step, self.steps or steps, self.start, self.end, self.base))

    @property
    def probability(self) -> float:
        """Current probability that the hits of a query are replaced."""
        return self._now[1]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query: those of `inner`, or noise instead of them."""
        check_request(queries, k)
        step, p = self._now
        lists = self.inner[0].search(queries, max(k - self.mixed_in, 1))
        results, noisy = [], 0
        for query, hits in zip(queries, lists, strict=True):
            numbers = random_numbers(self.seed, step, query)
            replace = p > 0 and next(numbers) < p * WORDS  # exact: p * 2**64 only moves the binary point
            noisy += replace
            own = self._noise(hits, numbers) if replace else self._kept(query, hits)
            results.append(self._mixed(query, own, k) if self.mixed_in else own)
        with self._lock:
            self.asked += len(results)
            self.noisy += noisy
        return results

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, besides the corpus and the step."""
        settings = {name: getattr(self, name) for name in ("start", "end", "base", "steps", "seed")}
        settings |= {"mixed_in": self.mixed_in} if self.mixed_in else {}
        return {"kind": "noise"} | settings | super().identity()

    def _noise(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        """Returns random passages instead of hits: as many, distinct from them, and with their scores."""
        others = self._others(hits, len(hits), numbers)
        return [Hit(other, hit.score) for other, hit in zip(others, hits, strict=False)]

    def _kept(self, query: str, hits: list[Hit]) -> list[Hit]:
        """Returns the hits of a query that are not replaced by noise."""
        return hits

    def _mixed(self, query: str, hits: Sequence[Hit], k: int) -> list[Hit]:
        """Returns hits among which random passages stand at random ranks; scores fall with the rank."""
        numbers = random_numbers(self.seed, self._now[0], f"mixed in {query}")
        passages = [hit.passage for hit in hits]
        for other in self._others(hits, min(self.mixed_in, k - len(hits)), numbers) if hits else ():
            passages.insert(next(numbers) % (len(passages) + 1), other)
        return [Hit(passage, float(len(passages) - rank)) for rank, passage in enumerate(passages)]

    def _others(self, hits: Sequence[Hit], most: int, numbers: Iterator[int]) -> list[Passage]:
        """Returns random passages that are distinct and none of the hits; fewer than `most` if there are no more."""
        taken = {hit.passage.id for hit in hits}
        others: list[Passage] = []
        while len(others) < min(most, len(self) - len(hits)):
            passage = self.passage(next(numbers) * len(self) // WORDS)  # scales the number down to a position
            if passage.id not in taken:
                taken.add(passage.id)
                others.append(passage)
        return others
