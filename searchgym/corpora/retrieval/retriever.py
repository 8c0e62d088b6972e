"""The retriever interface, the one way to call it, and small retrievers that stand on any index.

A retriever is anything with ``search(queries, k)``. It is always called in batches, through `retrieve`, which holds the
deadline, retries faults and checks the reply: a fault never becomes an observation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage

MAX_ATTEMPTS = 4
"""Calls made for one retrieval before giving up, deadline permitting."""
FIRST_PAUSE = 0.05
"""Seconds before the first retry; doubled for each further one."""


@runtime_checkable
class Retriever(Protocol):
    """What every retriever does.

    A retriever whose calls cannot hang may set ``in_process = True``: it is then called in the caller's thread, which
    saves a thread per call. One that answers several calls at the same time, as the client of a server does, may say
    how many with ``calls_at_once``; else episodes send it one after the other. One whose queries fail one by one says
    ``queries_at_once = 1``, so that they share no call. One that tries again by itself says ``tries_again = True``.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first; the same order of queries."""
        ...


@runtime_checkable
class CorpusRetriever(Retriever, Protocol):
    """A retriever over a corpus that is at hand: what is built of one, and what stands on that."""

    corpus_sha256: str | None
    """Identity of the corpus; None where it is in memory only."""

    def __len__(self) -> int:
        """Returns the number of passages."""
        ...

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        ...

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, 0 to len - 1."""
        ...


@runtime_checkable
class QuestionRetriever(Protocol):
    """A retriever whose corpus depends on the question: the distractor setting."""

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, each from its own question's passages."""
        ...


AnyRetriever = Retriever | QuestionRetriever


class NullRetriever:
    """Finds nothing, at no cost: for measuring what an environment costs by itself."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns an empty list per query."""
        return [[] for _ in queries]


def retrieve(
    retriever: AnyRetriever, question_ids: Sequence[str], queries: Sequence[str], k: int, deadline: float
) -> list[list[Hit]]:
    """Calls a retriever once for a batch, retrying faults until a deadline.

    Args:
        retriever: Whose `search` (or `search_for`) is called with the whole batch.
        question_ids: The question behind each query.
        queries: One query text each.
        k: Hits wanted per query.
        deadline: Seconds for everything, retries included. A call that hangs is abandoned (a daemon thread).

    Returns:
        One list of at most k hits per query.

    Raises:
        RetrieverError: Nothing usable came within the deadline or `MAX_ATTEMPTS` calls; carries the last fault.
    """

    def call() -> list[list[Hit]]:
        if isinstance(retriever, QuestionRetriever):
            return retriever.search_for(question_ids, queries, k)
        return retriever.search(queries, k)

    def call_safely() -> list[list[Hit]]:
        if getattr(retriever, "in_process", False):
            return call()
        return _call_within(call, end - time.monotonic())

    end = time.monotonic() + deadline
    pause = FIRST_PAUSE
    most = 1 if getattr(retriever, "tries_again", False) else MAX_ATTEMPTS
    for attempt in range(1, most + 1):
        try:
            return checked(call_safely(), len(queries), k)
        except Exception as error:
            if attempt == most or time.monotonic() + pause >= end:
                raise RetrieverError(
                    f"{type(retriever).__name__} failed {attempt} time(s) within {deadline:g} s: "
                    f"{type(error).__name__}: {error}"
                ) from error
            time.sleep(pause)
            pause *= 2
    raise AssertionError("unreachable")


def _call_within(call: Callable[[], list[list[Hit]]], seconds: float) -> list[list[Hit]]:
    """Runs `call` in a daemon thread, so that a hang can be abandoned without blocking the exit of the program."""
    box: list[list[list[Hit]] | BaseException] = []

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run, name="searchgym-retrieval", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if not box:
        raise TimeoutError("no reply before the deadline")
    if isinstance(box[0], Exception):
        raise box[0]
    if isinstance(box[0], BaseException):  # such as SystemExit: a fault of the retriever, not an order to this program
        raise RuntimeError(f"{type(box[0]).__name__}: {box[0]}") from box[0]
    return box[0]


def check_request(queries: Sequence[str], k: int) -> None:
    """Refuses what no retriever can answer; a string is a sequence of strings too, and never meant.

    Raises:
        UsageError: `queries` is a single string, or `k` is below 1.
    """
    if isinstance(queries, str):
        raise UsageError(f"queries must be a list of strings, got the string {queries[:80]!r}")
    if k < 1:
        raise UsageError(f"k must be at least 1, got {k}")


def checked(results: list[list[Hit]], expected: int, k: int) -> list[list[Hit]]:
    """Returns `results` if they are one list of at most k hits per query.

    Raises:
        RetrieverError: They are not.
    """
    if not isinstance(results, list) or len(results) != expected:
        got = f"{len(results)} lists" if isinstance(results, list) else type(results).__name__
        raise RetrieverError(f"expected a list of {expected} lists of hits, got {got}")
    for hits in results:
        if len(hits) > k or not all(isinstance(hit, Hit) for hit in hits):
            raise RetrieverError(f"expected at most {k} Hit records per query, got {hits!r:.200}")
    return results
