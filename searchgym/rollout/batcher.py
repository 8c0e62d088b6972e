"""Batching of what concurrent episodes wait for: they share calls, and never wait for each other's turns."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from searchgym.corpora.retriever import AnyRetriever, retrieve
from searchgym.records import Hit

Request = TypeVar("Request")
Reply = TypeVar("Reply")


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
        if batcher not in self._batchers:
            batcher.turnstile = self
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

    A batch leaves as soon as the last one is back, so that batches grow by themselves with the number of episodes. With
    `linger` those whom the last call woke are waited for, a moment: where a call costs much the same for few as for
    many, and they come back at once, two half batches in turn would take twice as long as whole ones.

    Args:
        call: Answers a batch, in order; runs in a worker thread, one call at a time. What it raises reaches everyone in
            the batch.
        size: Size of a request.
        max_size: Largest sum of sizes in one call; a larger single request goes alone.
        linger: How long to wait for those whom the last call woke, as a share of its duration; see above.
    """

    def __init__(
        self,
        call: Callable[[list[Request]], list[Reply]],
        size: Callable[[Request], int] = lambda _: 1,
        max_size: int = 512,
        linger: float = 0.0,
    ) -> None:
        self._call, self._size, self._max_size, self._linger = call, size, max_size, linger
        self._expected = 0
        """Of those whom the last call woke, how many have not asked again."""
        self._pause = 0.0
        """Seconds to wait for them at most."""
        self._all_back: asyncio.Future[None] | None = None
        self.waiting: list[_Waiting[Request, Reply]] = []
        self.turnstile: Turnstile | None = None
        """If there is one, it decides when batches leave, and calls run in the loop's own thread."""
        self._flusher: asyncio.Task[None] | None = None
        self.calls = 0
        """Calls made."""
        self.sizes = 0
        """Sum of the sizes of all requests sent."""

    async def ask(self, request: Request, place: tuple[str, int] = ("", 0)) -> Reply:
        """Returns the reply to one request.

        Args:
            request: What is asked.
            place: Question id and attempt of the episode: the order within a canonical batch.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(request, future, place))
        self._expected -= 1
        if self._expected <= 0 and self._all_back is not None and not self._all_back.done():
            self._all_back.set_result(None)
        if self.turnstile is not None:
            self.turnstile.check()
        elif self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return await future

    def send_in_order(self) -> None:
        """Makes the calls of everyone who waits, in the order of their places, here and now."""
        self.waiting.sort(key=lambda waiting: waiting.place)
        while self.waiting:
            batch = self._take()
            try:
                self._settle(batch, self._call([waiting.request for waiting in batch]))
            except Exception as error:
                self._fail(batch, error)

    async def _flush(self) -> None:
        """Sends batches until nobody waits."""
        try:
            while self.waiting:
                await self._gather()
                await self._send(self._take())
        finally:
            self._flusher = None

    async def _gather(self) -> None:
        """Waits for those whom the last call woke."""
        if self._expected > 0 and self._pause > 0:
            self._all_back = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_back, self._pause)
            self._all_back = None
        self._expected = 0

    def _take(self) -> list[_Waiting[Request, Reply]]:
        """Removes and returns the next batch: at least one request."""
        total, taken = 0, 0
        for waiting in self.waiting:
            total += self._size(waiting.request)
            if taken and total > self._max_size:
                break
            taken += 1
        batch, self.waiting = self.waiting[:taken], self.waiting[taken:]
        return batch

    async def _send(self, batch: list[_Waiting[Request, Reply]]) -> None:
        """Makes one call in a thread and wakes its episodes."""
        started = time.monotonic()
        try:
            replies = await _in_thread(self._call, [waiting.request for waiting in batch])
            self._pause = self._linger * (time.monotonic() - started)
            self._expected = len(batch)
            self._settle(batch, replies)
        except Exception as error:
            self._fail(batch, error)

    def _settle(self, batch: list[_Waiting[Request, Reply]], replies: list[Reply]) -> None:
        """Hands out the replies of one call.

        Raises:
            RuntimeError: There is not one per request.
        """
        self.calls += 1
        self.sizes += sum(self._size(waiting.request) for waiting in batch)
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests got {len(replies)} replies")
        for waiting, reply in zip(batch, replies, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(reply)

    @staticmethod
    def _fail(batch: list[_Waiting[Request, Reply]], error: Exception) -> None:
        """Gives everyone in a batch the error of its call: one each, since raising changes an exception."""
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_exception(copy.copy(error))


async def _in_thread(call: Callable[[list[Request]], list[Reply]], requests: list[Request]) -> list[Reply]:
    """Runs a call in a daemon thread: an interrupted program does not wait for it, as it would for ``to_thread``."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Reply]] = loop.create_future()

    def settle(replies: list[Reply] | None, error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(replies or [])

    def run() -> None:
        try:
            outcome: tuple[list[Reply] | None, Exception | None] = (call(requests), None)
        except Exception as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

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

    return Batcher(call, lambda request: len(request.texts), max_queries)
