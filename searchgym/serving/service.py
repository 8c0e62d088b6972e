"""What a retrieval server does with queries, whatever they came in: load, share calls, refuse what is too much."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from searchgym.corpora.retrieval.backends import Progress
from searchgym.corpora.retrieval.retriever import Retriever
from searchgym.errors import BusyError
from searchgym.records import Hit
from searchgym.rollout.batcher import Batcher, Queries, retrieval_batcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes at most."""

    queries: int = 1024
    """Of one request."""
    k: int = 100
    """Hits per query."""
    body: int = 8 * 2**20
    """Bytes of one request."""
    waiting: int = 8192
    """Queries accepted and not answered yet; what comes on top of that is told to come again."""
    batch: int = 512
    """Queries of one call of the retriever."""
    calls: int = 1
    """Calls of the retriever under way at once."""
    seconds: float = 30.0
    """Of one call, retries of faults included."""


class Metrics:
    """Counters of one server, in a registry of their own."""

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
            "From a request's arrival to its hits.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )


def _raise(error: BaseException) -> None:
    raise error


class Service:
    """Loads a retriever while it already listens, and answers queries of many requests by few calls.

    Requests that wait leave together as soon as a call may be made, each with those of the same k, so that the hits
    are those of a call of its own.

    Args:
        load: Returns the retriever, telling how far it is; called once, in a thread.
        limits: What is taken at most.
        failed: Told of the error if loading fails; otherwise the thread ends by it.
    """

    def __init__(
        self,
        load: Callable[[Progress], Retriever],
        limits: Limits | None = None,
        failed: Callable[[BaseException], None] = _raise,
    ) -> None:
        self.limits, self.metrics = limits or Limits(), Metrics()
        self._load, self._failed = load, failed
        self._retriever: Retriever | None = None
        self._batchers: dict[int, Batcher[Queries, list[list[Hit]]]] = {}
        self._slots = threading.Semaphore(self.limits.calls)
        self._waiting = 0
        self._started = time.monotonic()
        self.loading: dict[str, str | int] = {}
        """The stage of loading that takes long: its name, what is done of it, and the whole."""

    def start(self) -> None:
        """Begins to load."""
        threading.Thread(target=self._begin, name="searchgym-load", daemon=True).start()

    def _begin(self) -> None:
        try:
            self._retriever = self._load(self._note)
        except BaseException as error:
            self._failed(error)
        else:
            self.metrics.ready.set(1)

    def _note(self, stage: str, done: int, whole: int) -> None:
        self.loading = {"stage": stage, "done": done, "of": whole}

    @property
    def ready(self) -> bool:
        """Whether queries can be answered."""
        return self._retriever is not None

    @property
    def loading_seconds(self) -> float:
        """Seconds since the server began to load."""
        return time.monotonic() - self._started

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits for each query.

        Raises:
            BusyError: Still loading, or too many queries wait.
            RetrieverError: The retriever failed.
        """
        if self._retriever is None:
            raise BusyError(f"loading for {self.loading_seconds:.0f} s", after=2)
        if self._waiting + len(queries) > max(self.limits.waiting, len(queries)):
            raise BusyError(f"{self._waiting} queries wait already, at most {self.limits.waiting} may")
        if not queries:
            return []
        if k not in self._batchers:
            self._batchers[k] = self._batcher(self._retriever, k)
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

    def _batcher(self, retriever: Retriever, k: int) -> Batcher[Queries, list[list[Hit]]]:
        counted = _Counted(retriever, self.metrics, self._slots, self.limits)
        return retrieval_batcher(counted, k, self.limits.seconds, self.limits.batch)


class _Counted:
    """A retriever whose calls are counted: only so many are under way, whatever their k."""

    def __init__(self, retriever: Retriever, metrics: Metrics, slots: threading.Semaphore, limits: Limits) -> None:
        self._retriever, self._metrics, self._slots = retriever, metrics, slots
        self.calls_at_once, self._seconds = limits.calls, limits.seconds
        self.in_process = bool(getattr(retriever, "in_process", False))
        self.tries_again = bool(getattr(retriever, "tries_again", False))
        self.queries_at_once = int(getattr(retriever, "queries_at_once", sys.maxsize))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not self._slots.acquire(timeout=self._seconds):
            raise BusyError(f"no call of the retriever has ended within {self._seconds:g} s")
        try:
            self._metrics.calls.inc()
            return self._retriever.search(queries, k)
        finally:
            self._slots.release()
