"""The retriever interface, and `retrieve`, the function through which environments call it.

A retriever is any object with ``search(queries, k)``. It is always called in batches, through `retrieve`, which keeps
the deadline, retries faults and checks the reply, so that a fault never becomes an observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, cast, runtime_checkable

from searchgym import background
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage

MAX_ATTEMPTS = 4
"""Maximum number of calls for one retrieval within its deadline."""
FIRST_PAUSE = 0.05
"""Seconds before the first retry; the pause doubles with each further retry."""


@runtime_checkable
class Retriever(Protocol):
    """The interface of every retriever.

    Four optional attributes describe how a retriever may be called:

    - ``in_process = True``: calls cannot hang, so the caller's thread makes them, which saves a thread per call.
    - ``calls_at_once``: maximum number of simultaneous calls, for the client of a server say. Default: 1.
    - ``queries_at_once``: maximum number of queries per call; 1 if a query can fail without the others.
    - ``tries_again = True``: the retriever retries faults itself, so `retrieve` does not.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns one list per query, in query order, with at most k hits, best first."""
        ...


@runtime_checkable
class CorpusRetriever(Retriever, Protocol):
    """A retriever whose corpus is on this machine, so that its passages can be read directly."""

    corpus_sha256: str | None
    """sha256 of the corpus; None if the corpus exists in memory only."""

    def __len__(self) -> int:
        """Returns the number of passages."""
        ...

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        ...

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, from 0 to len - 1."""
        ...


@runtime_checkable
class QuestionRetriever(Protocol):
    """A retriever whose corpus depends on the question, as in the distractor setting."""

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, each from the passages of the query's question."""
        ...


AnyRetriever = Retriever | QuestionRetriever
"""A retriever with one corpus for all questions, or with a corpus per question."""


def corpus_of(retriever: object) -> CorpusRetriever | None:
    """Returns a retriever whose corpus is on this machine; None for any other."""
    # Only `passages` is checked: isinstance reads every member, and `corpus_sha256` of a client would ask its server.
    return cast(CorpusRetriever, retriever) if callable(getattr(retriever, "passages", None)) else None


class NullRetriever:
    """A retriever that never finds anything, for measuring the cost of an environment without retrieval."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns an empty list of hits per query."""
        return [[] for _ in queries]


def retrieve(
    retriever: AnyRetriever, question_ids: Sequence[str], queries: Sequence[str], k: int, deadline: float
) -> list[list[Hit]]:
    """Calls a retriever once for a batch, retrying faults until a deadline.

    Args:
        retriever: Retriever whose `search` (or `search_for`) is called with the whole batch.
        question_ids: Id of each query's question.
        queries: Query texts.
        k: Number of hits wanted per query.
        deadline: Seconds for the whole retrieval, retries included. A call that hangs is left to its daemon thread.

    Returns:
        One list of at most k hits per query.

    Raises:
        RetrieverError: No valid reply came within the deadline or `MAX_ATTEMPTS` calls; the message names the last
            fault.
    """

    def call() -> list[list[Hit]]:
        if isinstance(retriever, QuestionRetriever):
            return retriever.search_for(question_ids, queries, k)
        return retriever.search(queries, k)

    def call_safely() -> list[list[Hit]]:
        if getattr(retriever, "in_process", False):
            return call()
        return call_within(call, end - time.monotonic())

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


Result = TypeVar("Result")


def call_within(call: Callable[[], Result], seconds: float) -> Result:
    """Runs `call` in a daemon thread, so that a hang can be abandoned without blocking the exit of the program.

    Raises:
        TimeoutError: There was no result in time.
        Exception: Whatever `call` raised; a RuntimeError for what would end the program, such as SystemExit.
    """
    box: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:
            failed.append(error)

    thread = background.start(run, "searchgym-call")
    thread.join(max(seconds, 0.0))
    if failed and isinstance(failed[0], Exception):
        raise failed[0]
    if failed:  # SystemExit, say: a fault of another's code that must not end this program
        raise RuntimeError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    if not box:
        raise TimeoutError("no reply before the deadline")
    return box[0]


def check_request(queries: Sequence[str], k: int) -> None:
    """Checks the arguments of a search. A single string, itself a sequence of strings, is always a mistake.

    Raises:
        UsageError: `queries` is a single string, or `k` is below 1.
    """
    if isinstance(queries, str):
        raise UsageError(f"queries must be a list of strings, got the string {queries[:80]!r}")
    if k < 1:
        raise UsageError(f"k must be at least 1, got {k}")


def checked(results: list[list[Hit]], expected: int, k: int) -> list[list[Hit]]:
    """Returns a retriever's results after checking that they are one list of at most k hits per query.

    Args:
        results: Reply of the retriever.
        expected: Number of queries.
        k: Maximum number of hits per query.

    Raises:
        RetrieverError: The results have another form.
    """
    if not isinstance(results, list) or len(results) != expected:
        got = f"{len(results)} lists" if isinstance(results, list) else type(results).__name__
        raise RetrieverError(f"expected a list of {expected} lists of hits, got {got}")
    for hits in results:
        if len(hits) > k or not all(isinstance(hit, Hit) for hit in hits):
            raise RetrieverError(f"expected at most {k} Hit records per query, got {hits!r:.200}")
    return results
