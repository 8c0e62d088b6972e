"""A retriever that is asked once for the same query."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from searchgym.corpora.retrieval.retriever import Retriever, check_request, checked
from searchgym.corpora.retrieval.wrappers.wrapper import Wrapper
from searchgym.errors import UsageError
from searchgym.records import Hit


class CacheRetriever(Wrapper):
    """Keeps what was found for each query and k. Threads may share it; what fails is not kept.

    What is kept is forgotten at each step of training if the hits below change by step, as noise does.

    Args:
        inner: Asked for what is not known: the unknown queries of a batch, each once, in their order.
        size: Queries kept, at least 1; those not asked for the longest go first.

    Raises:
        UsageError: `size` is below 1.
    """

    def __init__(self, inner: Retriever, size: int = 100_000) -> None:
        if size < 1:
            raise UsageError(f"a cache keeps 1 query or more, got {size}")
        super().__init__(inner)
        self.size = size
        self.hits = 0
        """Queries that were answered without asking."""
        self.misses = 0
        """Queries that were asked for."""
        self._kept: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, as `inner` found them.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        found: dict[str, tuple[Hit, ...]] = {}
        with self._lock:
            kept = self._kept
            for query in queries:
                if (known := kept.get((query, k))) is not None:
                    kept.move_to_end((query, k))
                    found[query] = known
        unknown = [query for query in dict.fromkeys(queries) if query not in found]
        if unknown:
            lists = checked(self.inner[0].search(unknown, k), len(unknown), k)
            found |= zip(unknown, map(tuple, lists), strict=True)
        with self._lock:
            self.hits += len(queries) - len(unknown)
            self.misses += len(unknown)
            for query in unknown:
                kept[query, k] = found[query]
                kept.move_to_end((query, k))
            while len(kept) > self.size:
                kept.popitem(last=False)
        return [list(found[query]) for query in queries]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        return {"kind": "cache"} | super().identity()

    def at_step(self, step: int | None, steps: int) -> None:
        """Passes the step on."""
        super().at_step(step, steps)
        if self.changes_by_step:
            with self._lock:
                self._kept = OrderedDict()  # a search that is under way fills the old one
