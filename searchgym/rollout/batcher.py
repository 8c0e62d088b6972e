"""Batching of what concurrent episodes wait for: they share calls, and never wait for each other's turns."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from searchgym.corpora.retrieval.retriever import AnyRetriever, retrieve
from searchgym.records import Hit

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Result = TypeVar("Result")
Stream = Callable[[Callable[[], list[tuple[int, Request]]], Callable[[int, Reply], None]], None]
"""Called with (pull, deliver)."""


@dataclass(slots=True)
class _Waiting(Generic[Request, Reply]):
    request: Request
    future: asyncio.Future[Reply]
    place: tuple[str, int]


class Turnstile:
    """Makes batches canonical: they leave only when every running episode waits, in a fixed order.

    What is in a batch then depends on the episodes alone, not on how long a call took, so that the rounding of batched
    arithmetic is the same in every run. An episode must wait for one thing at a time.
    """

    def __init__(self) -> None:
        self._batchers: list[Batcher[Any, Any]] = []
        self._running = 0

    def add(self, batcher: Batcher[Any, Any]) -> None:
        """Makes a batcher wait here; batchers leave in the order in which they were added."""
        batcher.turnstile = self
        if batcher not in self._batchers:
            self._batchers.append(batcher)

    @contextlib.contextmanager
    def episode(self) -> Iterator[None]:
        """Counts an episode as running while the block runs."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self.check()

    def check(self) -> None:
        """Lets the batches leave if nobody is running who could still join them."""
        if self._running and sum(len(batcher.waiting) for batcher in self._batchers) >= self._running:
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        for batcher in self._batchers:
            batcher.send_in_order()


class Batcher(Generic[Request, Reply]):
    """Collects the requests of all episodes that are ready into calls.

    A batch leaves as soon as a call may be made, so that batches grow by themselves with the number of episodes. Where
    requests can be streamed there are no batches: each joins those that are under way and is answered when it is done.

    Args:
        call: Answers a batch, in order; runs in a worker thread. What it raises reaches everyone in the batch.
        size: Size of a request.
        max_size: Largest sum of sizes in one call; a larger single request goes alone.
        calls_at_once: Calls under way at the same time.
        stream: Answers requests as they come, see `StreamingSampler.stream`; used in the place of `call` where there
            is no turnstile. What it raises reaches everyone who is under way.
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
        """Taken from in worker threads too."""
        self.turnstile: Turnstile | None = None
        """If there is one, it decides when batches leave, and calls run in the loop's own thread."""
        self._under_way: list[asyncio.Task[None]] = []
        self.calls = 0
        """Calls made; each stream is one."""
        self.sizes = 0
        """Sum of the sizes of all requests that were answered."""

    async def ask(self, request: Request, place: tuple[str, int] = ("", 0)) -> Reply:
        """Returns the reply to one request.

        Args:
            request: What is asked.
            place: Question id and attempt of the episode: the order within a canonical batch.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(request, future, place))
        if self.turnstile is not None:
            self.turnstile.check()
            return await future
        # Asked of the tasks, not noted by them: one that is cancelled before it begins can note nothing.
        self._under_way = [task for task in self._under_way if not task.done()]
        if len(self._under_way) < self._most_calls:
            self._under_way.append(asyncio.create_task(self._send_all()))
        return await future

    def send_in_order(self) -> None:
        """Makes the calls of everyone who waits, in the order of their places, here and now."""
        self.waiting = deque(sorted(self.waiting, key=lambda waiting: waiting.place))
        while batch := self._take():
            try:
                self._settle(batch, self._call([waiting.request for waiting in batch]))
            except Exception as error:
                self._fail(batch, error)

    async def _send_all(self) -> None:
        """Makes calls until nobody waits."""
        while self.waiting:
            if self._stream is not None:
                await self._answer_stream(self._stream)
            elif batch := self._take():
                await self._send(batch)

    def _take(self) -> list[_Waiting[Request, Reply]]:
        """Removes and returns the next batch: at least one request, unless nobody waits any more."""
        total, batch = 0, list[_Waiting[Request, Reply]]()
        while self.waiting:
            total += self._size(self.waiting[0].request)
            if batch and total > self._max_size:
                break
            if not (waiting := self.waiting.popleft()).future.done():  # it is done where an episode was ended
                batch.append(waiting)
        return batch

    async def _send(self, batch: list[_Waiting[Request, Reply]]) -> None:
        """Makes one call in a thread and wakes its episodes."""
        requests = [waiting.request for waiting in batch]
        try:
            self._settle(batch, await _in_thread(lambda: self._call(requests)))
        except Exception as error:
            self._fail(batch, error)

    async def _answer_stream(self, stream: Stream[Request, Reply]) -> None:
        """Answers in a thread, one by one, those who wait and those who come meanwhile."""
        loop = asyncio.get_running_loop()
        under_way: dict[int, _Waiting[Request, Reply]] = {}
        count = itertools.count()
        self.calls += 1

        def pull() -> list[tuple[int, Request]]:
            if loop.is_closed():
                raise RuntimeError("the episodes that asked have been given up")
            new: list[_Waiting[Request, Reply]] = []
            while self.waiting:
                new.append(self.waiting.popleft())
            keyed = [(next(count), waiting) for waiting in new if not waiting.future.done()]
            under_way.update(keyed)
            return [(key, waiting.request) for key, waiting in keyed]

        def deliver(key: int, reply: Reply) -> None:
            loop.call_soon_threadsafe(self._answer, under_way.pop(key), reply)

        try:
            await _in_thread(lambda: stream(pull, deliver))
            if under_way:
                raise RuntimeError(f"{len(under_way)} requests got no reply")
        except Exception as error:
            self._fail(list(under_way.values()), error)

    def _settle(self, batch: list[_Waiting[Request, Reply]], replies: list[Reply]) -> None:
        """Hands out the replies of one call.

        Raises:
            RuntimeError: There is not one per request.
        """
        self.calls += 1
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests got {len(replies)} replies")
        for waiting, reply in zip(batch, replies, strict=True):
            self._answer(waiting, reply)

    def _answer(self, waiting: _Waiting[Request, Reply], reply: Reply) -> None:
        """Wakes an episode."""
        self.sizes += self._size(waiting.request)
        if not waiting.future.done():
            waiting.future.set_result(reply)

    @staticmethod
    def _fail(batch: list[_Waiting[Request, Reply]], error: Exception) -> None:
        """Gives everyone in a batch the error of its call: one each, since raising changes an exception."""
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_exception(copy.copy(error))


async def _in_thread(call: Callable[[], Result]) -> Result:
    """Runs a call in a daemon thread: an interrupted program does not wait for it, as it would for ``to_thread``."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            ended: tuple[Callable[[Any], None], Any] = (future.set_result, call())
        except Exception as error:
            ended = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *ended)

    threading.Thread(target=run, name="searchgym-batch", daemon=True).start()
    return await future


@dataclass(frozen=True, slots=True)
class Queries:
    """What one action of one episode asks the retriever."""

    question_id: str
    texts: tuple[str, ...]


def retrieval_batcher(
    retriever: AnyRetriever, k: int, deadline: float, max_queries: int = 512
) -> Batcher[Queries, list[list[Hit]]]:
    """Returns a batcher over a retriever.

    Args:
        retriever: What is searched.
        k: Hits per query.
        deadline: Seconds per call, retries included.
        max_queries: Most queries in one call.
    """

    def call(requests: list[Queries]) -> list[list[list[Hit]]]:
        texts = [text for request in requests for text in request.texts]
        ids = [request.question_id for request in requests for _ in request.texts]
        hits = iter(retrieve(retriever, ids, texts, k, deadline))
        return [[next(hits) for _ in request.texts] for request in requests]

    at_once = int(getattr(retriever, "calls_at_once", 1))
    together = min(max_queries, int(getattr(retriever, "queries_at_once", max_queries)))
    return Batcher(call, lambda request: len(request.texts), together, at_once)
