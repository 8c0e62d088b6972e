"""Batching across concurrent episodes, which share calls to models and retrievers without waiting for each other."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from searchgym import threads
from searchgym.records import Hit
from searchgym.retrieval.retriever import AnyRetriever, retrieve

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Result = TypeVar("Result")
Stored = TypeVar("Stored", contravariant=True)
Stream = Callable[[Callable[[], list[tuple[int, Request]]], Callable[[int, Reply], None]], None]
"""Function (pull, deliver) that answers requests until `pull` returns none; see `StreamingSampler.stream`."""


class Memory(Protocol[Stored, Reply]):
    """Interface of an object that stores replies, so that they are not computed twice."""

    def recall(self, requests: Sequence[Stored]) -> Sequence[Reply] | None:
        """Returns the replies to all requests, in order; None if one of them is missing."""
        ...

    def record(self, requests: Sequence[Stored], replies: Sequence[Reply]) -> None:
        """Stores replies."""


@dataclass(slots=True)
class _Waiting(Generic[Request, Reply]):
    request: Request
    future: asyncio.Future[Reply]
    sort_key: tuple[str, int]


class Turnstile:
    """Gate that makes batches canonical: they are sent in a fixed order, and only when every running episode waits.

    The contents of a batch then depend only on the episodes, not on the duration of calls, so that the rounding of
    batched arithmetic is the same in every run. An episode must wait for one request at a time.
    """

    def __init__(self) -> None:
        self._batchers: list[Batcher[Any, Any]] = []
        self._running = 0

    def add(self, batcher: Batcher[Any, Any]) -> None:
        """Adds a batcher to the gate; batchers send in the order in which they were added."""
        batcher.turnstile = self
        if batcher not in self._batchers:
            self._batchers.append(batcher)

    @contextlib.contextmanager
    def episode(self) -> Iterator[None]:
        """Context manager that counts an episode as running while its block runs."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self.check()

    def check(self) -> None:
        """Sends the batches if every running episode waits, so that no further request could join them."""

        def send() -> None:
            for batcher in self._batchers:
                batcher.send_in_order()

        if self._running and sum(len(batcher.waiting) for batcher in self._batchers) >= self._running:
            asyncio.get_running_loop().call_soon(send)


class Batcher(Generic[Request, Reply]):
    """Collects the requests of waiting episodes into batched calls.

    A batch is sent as soon as a call may start, so batches grow with the number of episodes. If requests can be
    streamed there are no batches: each request joins the running stream and is answered when it is done.

    Args:
        call: Function that answers a batch, in order; it runs in a worker thread. An exception goes to every request of
            the batch.
        size: Function that returns the size of a request.
        max_size: Maximum sum of sizes in one call; a larger single request is sent alone.
        calls_at_once: Maximum number of concurrent calls.
        stream: Function that answers requests as they arrive, see `StreamingSampler.stream`; used instead of `call`
            unless there is a turnstile. An exception goes to every unanswered request.
    """

    def __init__(
        self,
        call: Callable[[list[Request]], list[Reply]],
        size: Callable[[Request], int] = lambda _: 1,
        max_size: int = 512,
        calls_at_once: int = 1,
        stream: Stream[Request, Reply] | None = None,
    ) -> None:
        self._call, self._size, self._max_size, self._stream = call, size, max_size, stream
        self._most_calls = 1 if stream is not None else calls_at_once
        self.waiting: deque[_Waiting[Request, Reply]] = deque()
        """Requests not sent yet; a deque, because worker threads remove items too."""
        self.turnstile: Turnstile | None = None
        """Gate that decides when batches are sent; if set, calls run in the event loop's thread."""
        self.memory: Memory[Request, Reply] | None = None
        """Stored replies, which are used instead of calls. With a turnstile, batches are answered from it as a whole,
        since what is left of one would be rounded differently."""
        self.before: Callable[[], None] | None = None
        """Called before each canonical batch: removes caches of earlier ones, so that a batch whose replies are stored
        can be left out without a change of the next."""
        self._under_way: list[asyncio.Task[None]] = []
        self.calls = 0
        """Number of calls made; a stream counts as one."""
        self.sizes = 0
        """Sum of the sizes of all answered requests."""

    async def ask(self, request: Request, sort_key: tuple[str, int] = ("", 0)) -> Reply:
        """Queues one request and waits for its reply.

        Args:
            request: The request.
            sort_key: Question id and attempt of the episode, by which canonical batches are sorted.
        """
        if self.memory is not None and self.turnstile is None and (stored := self.memory.recall([request])) is not None:
            return stored[0]
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self.waiting.append(_Waiting(request, future, sort_key))
        if self.turnstile is not None:
            self.turnstile.check()
            return await future
        # A counter in the tasks would drift: a task cancelled before it starts could not decrement it.
        # A task of a loop that was closed meanwhile never ends.
        self._under_way = [task for task in self._under_way if not task.done() and task.get_loop() is loop]
        if len(self._under_way) < self._most_calls:
            self._under_way.append(asyncio.create_task(self._send_all()))
        return await future

    def send_in_order(self) -> None:
        """Answers all waiting requests at once in this thread, in the order of their sort keys."""
        self.waiting = deque(sorted(self.waiting, key=lambda waiting: waiting.sort_key))
        while batch := self._take():
            requests = [waiting.request for waiting in batch]
            try:
                stored = None if self.memory is None else self.memory.recall(requests)
                if stored is None:
                    if self.before is not None:
                        self.before()
                    self._settle(batch, self._call(requests))
                else:
                    for waiting, reply in zip(batch, stored, strict=True):
                        self._answer(waiting, reply)
            except Exception as error:
                self._fail(batch, error)

    async def _send_all(self) -> None:
        """Sends batches in threads, or streams, until no request waits."""
        while self.waiting:
            if self._stream is not None:
                await self._answer_stream(self._stream)
            elif batch := self._take():
                requests = [waiting.request for waiting in batch]
                try:
                    self._settle(batch, await _in_thread(functools.partial(self._call, requests)))
                except Exception as error:
                    self._fail(batch, error)

    def _take(self) -> list[_Waiting[Request, Reply]]:
        """Removes and returns the next batch: at least one request, unless none is waiting."""
        total, batch = 0, list[_Waiting[Request, Reply]]()
        while self.waiting:
            total += self._size(self.waiting[0].request)
            if batch and total > self._max_size:
                break
            if not (waiting := self.waiting.popleft()).future.done():  # else its episode was cancelled
                batch.append(waiting)
        return batch

    async def _answer_stream(self, stream: Stream[Request, Reply]) -> None:
        """Runs a stream in a thread, which answers the waiting requests and those that arrive meanwhile."""
        loop = asyncio.get_running_loop()
        under_way: dict[int, _Waiting[Request, Reply]] = {}
        count = itertools.count()
        self.calls += 1

        def pull() -> list[tuple[int, Request]]:
            if loop.is_closed():
                raise RuntimeError("the waiting episodes were cancelled")
            new: list[_Waiting[Request, Reply]] = []
            while self.waiting:
                new.append(self.waiting.popleft())
            keyed = [(next(count), waiting) for waiting in new if not waiting.future.done()]
            under_way.update(keyed)
            return [(key, waiting.request) for key, waiting in keyed]

        def deliver(key: int, reply: Reply) -> None:
            waiting = under_way.pop(key)
            if self.memory is not None:
                self.memory.record([waiting.request], [reply])
            loop.call_soon_threadsafe(self._answer, waiting, reply)

        try:
            await _in_thread(lambda: stream(pull, deliver))
            if under_way:
                raise RuntimeError(f"{len(under_way)} requests got no reply")
        except Exception as error:
            self._fail(list(under_way.values()), error)

    def _settle(self, batch: list[_Waiting[Request, Reply]], replies: list[Reply]) -> None:
        """Distributes the replies of one call.

        Raises:
            RuntimeError: The number of replies differs from the number of requests.
        """
        self.calls += 1
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests got {len(replies)} replies")
        if self.memory is not None:
            self.memory.record([waiting.request for waiting in batch], replies)
        for waiting, reply in zip(batch, replies, strict=True):
            self._answer(waiting, reply)

    def _answer(self, waiting: _Waiting[Request, Reply], reply: Reply) -> None:
        """Passes a reply to the waiting episode."""
        self.sizes += self._size(waiting.request)
        if not waiting.future.done():
            waiting.future.set_result(reply)

    @staticmethod
    def _fail(batch: list[_Waiting[Request, Reply]], error: Exception) -> None:
        """Fails every request of a batch with a copy of the error: raising an exception changes its traceback."""
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_exception(copy.copy(_for_future(error)))


def _for_future(error: BaseException) -> Exception:
    """Returns an error that a future accepts: futures accept neither StopIteration nor other than `Exception`.

    Otherwise a library's panic, for example, would not be reported, and all episodes would wait.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failed = RuntimeError(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


async def _in_thread(call: Callable[[], Result]) -> Result:
    """Runs a call in a daemon thread, so that an interrupted program does not wait (unlike ``asyncio.to_thread``)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, call())
        except BaseException as error:
            outcome = (future.set_exception, _for_future(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: no request waits
            loop.call_soon_threadsafe(settle, *outcome)

    threads.start(run, "searchgym-batch")
    return await future


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries of one search action, with the question's id."""

    question_id: str
    texts: tuple[str, ...]


def retrieval_batcher(
    retriever: AnyRetriever, k: int, deadline: float, max_queries: int = 512
) -> Batcher[Queries, list[list[Hit]]]:
    """Returns a batcher that sends the queries of many episodes to a retriever in shared calls.

    Args:
        retriever: Retriever to search with.
        k: Number of hits per query.
        deadline: Seconds per call, retries included.
        max_queries: Maximum number of queries in one call.
    """

    def call(requests: list[Queries]) -> list[list[list[Hit]]]:
        texts = [text for request in requests for text in request.texts]
        ids = [request.question_id for request in requests for _ in request.texts]
        hits = iter(retrieve(retriever, ids, texts, k, deadline))
        return [[next(hits) for _ in request.texts] for request in requests]

    at_once = int(getattr(retriever, "calls_at_once", 1))
    together = min(max_queries, int(getattr(retriever, "queries_at_once", max_queries)))
    return Batcher(call, lambda request: len(request.texts), together, at_once)
