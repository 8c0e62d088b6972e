"""Retriever ``cache``: caches the hits of another retriever."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.records import Hit
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import Retriever, check_request, checked
from searchgym.retrieval.wrapper import Wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCard(RetrieverCard):
    """Another retriever whose hits are cached, so that it searches only once for the same query."""

    of: RetrieverCard
    """Card of the retriever whose hits are cached."""
    size: Annotated[int, Interval(ge=1, le=1e9)] = 100_000
    """Maximum number of queries in the cache; the least recently used one is removed first."""

    @override
    def open(self, sources: Sources) -> CacheRetriever:
        return CacheRetriever(sources.open(self.of), self.size)


class CacheRetriever(Wrapper):
    """Retriever that caches another one's hits for each query and k. Threads may share it; faults are not cached.

    If the wrapped retriever's hits change with the training step, as with noise, each step empties the cache.

    Args:
        inner: Wrapped retriever; it gets the queries of a batch that are not cached, in order and without repeats.
        size: Maximum number of queries in the cache, at least 1; the least recently used one is removed first.

    Raises:
        UsageError: `size` is below 1.
    """

    def __init__(self, inner: Retriever, size: int = 100_000) -> None:
        if size < 1:
            raise UsageError(f"a cache needs room for at least 1 query, got {size}")
        super().__init__(inner)
        self.size = size
        self.hits = 0
        """Number of queries answered from the cache."""
        self.misses = 0
        """Number of queries that went to the wrapped retriever."""
        self._kept: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, from the cache or from the wrapped retriever.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        results: dict[str, tuple[Hit, ...]] = {}
        with self._lock:
            cache = self._kept
            for query in queries:
                if (cached := cache.get((query, k))) is not None:
                    cache.move_to_end((query, k))
                    results[query] = cached
        unknown = [query for query in dict.fromkeys(queries) if query not in results]
        if unknown:
            lists = checked(self.inner[0].search(unknown, k), len(unknown), k)
            results |= zip(unknown, map(tuple, lists), strict=True)
        with self._lock:
            self.hits += len(queries) - len(unknown)
            self.misses += len(unknown)
            for query in unknown:
                cache[query, k] = results[query]
                cache.move_to_end((query, k))
            while len(cache) > self.size:
                cache.popitem(last=False)
        return [list(results[query]) for query in queries]

    @override
    def identity(self) -> dict[str, Any]:
        return {"kind": "cache"} | super().identity()

    @override
    def at_step(self, step: int | None, steps: int) -> None:
        super().at_step(step, steps)
        if self.changes_by_step:
            with self._lock:
                self._kept = OrderedDict()  # not cleared: a search under way may still fill the old cache
