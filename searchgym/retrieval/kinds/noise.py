"""Retriever ``noise``: another retriever whose hits are sometimes random passages, more often as training progresses.

It follows the curriculum of ZeroSearch (Sun et al., arXiv 2505.04588): a policy learns to doubt what it reads only if
some searches fail. ZeroSearch's noise is written by a model; here it consists of passages of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.options import read
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import Retriever, check_request
from searchgym.retrieval.schedule import WORDS, NoiseSchedule, draw_noise, random_numbers
from searchgym.retrieval.wrapper import Wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCard(NoiseSchedule):
    """Another retriever whose hits are sometimes random passages, more often as training progresses."""

    of: RetrieverCard
    """Card of the retriever whose hits are replaced."""
    mixed_in: Annotated[int, Interval(ge=0, le=1e9)] = 0
    """Number of random passages inserted at random ranks among the hits of every query, in evaluations too."""

    @override
    def open(self, sources: Sources) -> NoiseRetriever:
        options = {name: getattr(self, name) for name in (*SCHEDULE, "mixed_in")}
        return NoiseRetriever(sources.open(self.of), **options)


SCHEDULE = ("start", "end", "base", "steps", "seed")
"""Fields of the schedule."""


class NoiseRetriever(Wrapper):
    """Retriever that replaces, with some probability, all hits of a query by random passages of the corpus.

    The random passages are distinct, and none of them is among the hits that they replace, whose scores they get. A
    query without hits still has none. A corpus with too few other passages gives as many as it has.

    Whether a query is replaced, and by which passages, depends only on (seed, step, query), not on the rest of the
    batch, on threads or on the order of episodes. So within one step equal queries get equal hits, and the next step
    draws again.

    With `mixed_in`, that many random passages are also inserted at random ranks among the hits of every query, in
    evaluations too, so that there is something to rank (an addition to ZeroSearch). They replace the last hits.

    Args:
        inner: Wrapped retriever, whose corpus is on this machine.
        mixed_in: Number of random passages among the hits of every query. Default: none.
        **schedule: Fields of `NoiseSchedule`.

    Raises:
        UsageError: `inner` has no corpus on this machine, or `mixed_in` is negative.
        CardError: The schedule has another field, or a number is out of range.
    """

    def __init__(self, inner: Retriever, *, mixed_in: int = 0, **schedule: Any) -> None:
        super().__init__(inner)
        if not hasattr(self, "passage"):
            raise UsageError(f"noise is drawn from the corpus: {type(inner).__name__} has none on this machine")
        if mixed_in < 0:
            raise UsageError(f"mixed_in must be at least 0, got {mixed_in}")
        self.schedule, self.mixed_in = read(NoiseSchedule, schedule, "noise"), mixed_in
        self.changes_by_step = True
        self._step: int | None = None
        self.probability = 0.0
        """Current probability that the hits of a query are replaced."""

    @override
    def at_step(self, step: int | None, steps: int) -> None:
        super().at_step(step, steps)
        self._step, self.probability = step, self.schedule.probability(step, steps)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query: those of `inner`, or noise instead of them."""
        check_request(queries, k)
        lists = self.inner[0].search(queries, max(k - self.mixed_in, 1))
        return [self._changed(query, hits, k) for query, hits in zip(queries, lists, strict=True)]

    @override
    def identity(self) -> dict[str, Any]:
        settings = {name: getattr(self.schedule, name) for name in SCHEDULE}
        settings |= {"mixed_in": self.mixed_in} if self.mixed_in else {}
        return {"kind": "noise"} | settings | super().identity()

    def _changed(self, query: str, hits: list[Hit], k: int) -> list[Hit]:
        """Returns the hits of a query with noise instead of them or mixed in."""
        numbers = random_numbers(self.schedule.seed, self._step, query)
        if draw_noise(self.probability, numbers):
            others = self._others(hits, len(hits), numbers)
            hits = [Hit(other, hit.score) for other, hit in zip(others, hits, strict=False)]
        if not self.mixed_in:
            return hits
        passages = self._among(f"mixed in {query}", hits, len(hits), min(self.mixed_in, k - len(hits)))
        return [Hit(passage, float(len(passages) - rank)) for rank, passage in enumerate(passages)]

    def _among(self, key: str, hits: Sequence[Hit], first: int, most: int) -> list[Passage]:
        """Returns the passages of the first hits and, at random ranks, at most `most` others that no hit holds."""
        numbers = random_numbers(self.schedule.seed, self._step, key)
        passages = [hit.passage for hit in hits[:first]]
        for other in self._others(hits, most, numbers) if hits else ():
            passages.insert(next(numbers) % (len(passages) + 1), other)
        return passages

    def _others(self, hits: Sequence[Hit], most: int, numbers: Iterator[int]) -> list[Passage]:
        """Returns random passages that are distinct and none of the hits; fewer than `most` if there are no more."""
        ids = {hit.passage.id for hit in hits}
        others: list[Passage] = []
        while len(others) < min(most, len(self) - len(hits)):
            passage = self.passage(next(numbers) * len(self) // WORDS)  # scales the number down to a position
            if passage.id not in ids:
                ids.add(passage.id)
                others.append(passage)
        return others
