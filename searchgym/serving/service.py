"""Core of a retrieval server, without HTTP: loads the retriever, batches queries and refuses overload."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from searchgym.errors import BusyError
from searchgym.records import Hit
from searchgym.retrieval.cards import Progress
from searchgym.retrieval.kinds.http import MOST_HITS
from searchgym.retrieval.retriever import Retriever
from searchgym.rollout.batcher import Batcher, Queries, retrieval_batcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a retrieval server on requests and on calls of its retriever."""

    queries: int = 1024
    """Maximum number of queries in a request."""
    k: int = 100
    """Maximum number of hits per query."""
    hits: int = MOST_HITS
    """Maximum number of hits in a request, its queries times k."""
    body: int = 4 * 2**20
    """Maximum number of bytes in a request; parsing this many can delay all other requests by 0.1 seconds."""
    waiting: int = 8192
    """Maximum number of queries accepted but not yet answered; further requests are refused with status 503."""
    batch: int = 512
    """Maximum number of queries in one call of the retriever."""
    calls: int = 1
    """Maximum number of simultaneous calls of the retriever."""
    seconds: float = 30.0
    """Maximum number of seconds for a call of the retriever, retries included."""


class Metrics:
    """Prometheus metrics of one server, in a separate registry, so that several servers can share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "searchgym_requests", "Requests by path and status.", ("path", "status"), registry=self.registry
        )
        self.queries = Counter("searchgym_queries", "Queries answered.", registry=self.registry)
        self.calls = Counter("searchgym_retriever_calls", "Calls of the retriever.", registry=self.registry)
        self.waiting = Gauge("searchgym_waiting_queries", "Queries not answered yet.", registry=self.registry)
        self.ready = Gauge("searchgym_ready", "1 once the index is loaded.", registry=self.registry)
        self.seconds = Histogram(
            "searchgym_search_seconds",
            "Seconds from the arrival of a request to its hits.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )


class Service:
    """Service that loads a retriever in the background and answers the queries of many requests with few calls.

    Waiting requests share the next call of the retriever. Only requests with the same k share one, so that each gets
    the same hits as in a separate call.

    Args:
        load: Loads and returns the retriever, and reports progress; called once, in a thread.
        limits: Limits on requests and calls.
        failed: Called with the exception if loading fails. Default: raises it in the loading thread.
    """

    def __init__(
        self,
        load: Callable[[Progress], Retriever],
        limits: Limits | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.limits, self.metrics = limits or Limits(), Metrics()
        self._load, self._failed = load, failed
        self._retriever: Retriever | None = None
        self._batchers: dict[int, Batcher[Queries, list[list[Hit]]]] = {}
        self._slots = threading.Semaphore(self.limits.calls)
        self._waiting = 0
        self._started = time.monotonic()
        self.writer = ThreadPoolExecutor(1, "searchgym-answer")
        """Executor with one thread that encodes long replies; several would keep the event loop from running."""
        self.loading: dict[str, str | int] = {}
        """Progress of loading: ``stage`` (name of the stage), ``done`` (work done) and ``of`` (total work)."""

    def start(self) -> None:
        """Starts to load the retriever in a thread."""
        threading.Thread(target=self.load, name="searchgym-load", daemon=True).start()

    def load(self) -> None:
        """Loads the retriever; queries are answered from then on."""

        def note(stage: str, done: int, whole: int) -> None:
            self.loading = {"stage": stage, "done": done, "of": whole}

        try:
            self._retriever = self._load(note)
        except BaseException as error:
            if self._failed is None:
                raise
            self._failed(error)
        else:
            self.metrics.ready.set(1)

    @property
    def ready(self) -> bool:
        """Whether the retriever is loaded, so that queries can be answered."""
        return self._retriever is not None

    @property
    def loading_seconds(self) -> float:
        """Seconds since the service was created, just before loading starts."""
        return time.monotonic() - self._started

    async def until_ready(self, seconds: float) -> None:
        """Waits until the retriever is loaded, for at most `seconds`."""
        end = time.monotonic() + seconds
        while not self.ready and time.monotonic() < end:
            await asyncio.sleep(0.05)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits for each query.

        Raises:
            BusyError: The retriever is still loading, or too many queries are waiting.
            RetrieverError: The retriever failed.
        """
        if self._retriever is None:
            raise BusyError(f"loading for {self.loading_seconds:.0f} s: try again", after=2)
        # The maximum accepts a request that exceeds the limit by itself while nothing else waits.
        if self._waiting + len(queries) > max(self.limits.waiting, len(queries)):
            raise BusyError(f"{self._waiting} queries are waiting already, the limit is {self.limits.waiting}")
        if not queries:
            return []
        if k not in self._batchers:
            counted = _Counted(self._retriever, self.metrics, self._slots, self.limits)
            # A call of many queries with a large k would delay the requests with another k.
            most = min(self.limits.batch, max(self.limits.hits // k, 1))
            self._batchers[k] = retrieval_batcher(counted, k, self.limits.seconds, most)
        batcher, started = self._batchers[k], time.monotonic()
        self._count(len(queries))
        try:
            hits = await batcher.ask(Queries("", tuple(queries)))
        finally:
            self._count(-len(queries))
        self.metrics.queries.inc(len(queries))
        self.metrics.seconds.observe(time.monotonic() - started)
        return hits

    def _count(self, queries: int) -> None:
        self._waiting += queries
        self.metrics.waiting.set(self._waiting)


class _Counted:
    """Retriever that counts calls and limits the number of simultaneous ones, which may have different k."""

    def __init__(self, retriever: Retriever, metrics: Metrics, slots: threading.Semaphore, limits: Limits) -> None:
        self._retriever, self._metrics, self._slots = retriever, metrics, slots
        self.calls_at_once, self._seconds = limits.calls, limits.seconds
        self.in_process = bool(getattr(retriever, "in_process", False))
        self.tries_again = bool(getattr(retriever, "tries_again", False))
        self.queries_at_once = int(getattr(retriever, "queries_at_once", sys.maxsize))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        # Each k has a separate batcher, and batchers do not know about each other's calls.
        if not self._slots.acquire(timeout=self._seconds):
            raise BusyError(f"no call of the retriever ended within {self._seconds:g} s")
        try:
            self._metrics.calls.inc()
            return self._retriever.search(queries, k)
        finally:
            self._slots.release()
