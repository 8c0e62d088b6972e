"""The retrieval batcher: concurrent episodes wait for one retriever call together, never for each other's turns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from searchgym.corpora.retriever import AnyRetriever, retrieve
from searchgym.errors import RetrieverError
from searchgym.records import Hit


@dataclass(slots=True)
class _Waiting:
    question_id: str
    queries: tuple[str, ...]
    future: asyncio.Future[list[list[Hit]]]


class RetrievalBatcher:
    """Collects the queries of all episodes that are ready into batches.

    A batch leaves as soon as the retriever is free and every episode that can run has run, so nothing waits on a timer
    and batches grow by themselves with the number of episodes.

    Args:
        retriever: Called from a worker thread, one call at a time.
        k: Hits per query.
        deadline: Seconds per call, retries included.
        max_batch: Most queries in one call.
    """

    def __init__(self, retriever: AnyRetriever, k: int, deadline: float, max_batch: int = 512) -> None:
        self._retriever, self._k, self._deadline, self._max_batch = retriever, k, deadline, max_batch
        self._waiting: list[_Waiting] = []
        self._flusher: asyncio.Task[None] | None = None
        self.calls = 0
        """Retriever calls made."""
        self.queries = 0
        """Queries sent."""

    async def search(self, question_id: str, queries: tuple[str, ...]) -> list[list[Hit]]:
        """Returns the hits of some queries of one episode.

        Raises:
            RetrieverError: The retriever failed past its deadline.
        """
        future: asyncio.Future[list[list[Hit]]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(question_id, queries, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        """Sends batches until nobody waits."""
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            self._flusher = None

    def _take(self) -> list[_Waiting]:
        """Removes and returns the next batch: at least one request, at most `max_batch` queries."""
        size, taken = 0, 0
        for request in self._waiting:
            size += len(request.queries)
            if taken and size > self._max_batch:
                break
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        """Retrieves for one batch and wakes its episodes."""
        queries = [query for request in batch for query in request.queries]
        ids = [request.question_id for request in batch for _ in request.queries]
        self.calls += 1
        self.queries += len(queries)
        try:
            hits = await asyncio.to_thread(retrieve, self._retriever, ids, queries, self._k, self._deadline)
        except RetrieverError as error:
            for request in batch:
                if not request.future.done():
                    request.future.set_exception(RetrieverError(str(error)))
            return
        at = 0
        for request in batch:
            if not request.future.done():
                request.future.set_result(hits[at : at + len(request.queries)])
            at += len(request.queries)
