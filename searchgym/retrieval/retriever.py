"""The retriever interface, and `retrieve`, the function through which environments call it.

A retriever is any object with ``search(queries, k)``. It is always called in batches, through `retrieve`, which
enforces the deadline, retries faults and checks the reply, so that a fault never becomes an observation.

A *fault* is an exception from `search`, a reply of the wrong length, or a hit with an unusable field. Faults happen in
normal operation; they end episodes with ``retriever_error``. A `search` that takes other arguments, or returns anything
but lists of `Hit` records, is a *mistake* in the program, which a retry cannot fix: it raises a UsageError at once.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import numbers
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol, Self, cast, runtime_checkable

from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.threads import call_within

MAX_ATTEMPTS = 4
"""Maximum number of calls for one retrieval within its deadline."""
FIRST_PAUSE = 0.05
"""Seconds before the first retry; the pause doubles with each further retry."""


@runtime_checkable
class Retriever(Protocol):
    """The interface of every retriever.

    Four optional attributes describe how a retriever may be called:

    - ``in_process = True``: calls cannot hang, so the caller's thread makes them, which saves a thread per call.
    - ``calls_at_once``: maximum number of simultaneous calls, for example of a server's client. Default: 1.
    - ``queries_at_once``: maximum number of queries per call; 1 if a failing query must not fail the others.
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
    # Only `passages` is checked: isinstance reads every member, and `corpus_sha256` of a client would query its server.
    return cast(CorpusRetriever, retriever) if callable(getattr(retriever, "passages", None)) else None


class NullRetriever:
    """A retriever that never finds anything, for measuring the cost of an environment without retrieval."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns an empty list of hits per query."""
        return [[] for _ in queries]


class Passages(Protocol):
    """A sequence of passages, such as a list or a `PassageStore`."""

    def __len__(self) -> int:
        """Returns the number of passages."""
        ...

    def __getitem__(self, position: int, /) -> Passage:
        """Returns the passage at a position."""
        ...

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        ...


class LocalRetriever:
    """Base class of `CorpusRetriever`s that search in this process; copying one returns the same object.

    Args:
        passages: The indexed passages, by position.
        corpus_sha256: `IndexManifest.corpus_sha256` of the index folder; None if there is none.
    """

    in_process = True  # a search cannot hang: `retrieve` need not watch it from another thread

    def __init__(self, passages: Passages, corpus_sha256: str | None) -> None:
        self._passages, self.corpus_sha256 = passages, corpus_sha256

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._passages)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        return iter(self._passages)

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, from 0 to len - 1."""
        return self._passages[position]

    def _hits_at(self, positions: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> list[list[Hit]]:
        """Returns the hits of each query, from their positions and scores."""
        stored, hits = self._passages, list[list[Hit]]()
        for row, row_scores in zip(positions, scores, strict=True):
            passages = stored.read(row) if isinstance(stored, PassageStore) else [stored[p] for p in row]
            hits.append([Hit(passage, score) for passage, score in zip(passages, row_scores, strict=True)])
        return hits


def retrieve(
    retriever: AnyRetriever, question_ids: Sequence[str], queries: Sequence[str], k: int, deadline: float
) -> list[list[Hit]]:
    """Calls a retriever once for a batch, retrying faults until a deadline.

    Args:
        retriever: Retriever whose `search` (or `search_for`) is called with the whole batch.
        question_ids: Id of each query's question.
        queries: Query texts.
        k: Number of hits wanted per query.
        deadline: Seconds for the whole retrieval, retries included. A call that hangs is left in a daemon thread.

    Returns:
        One list of at most k hits per query.

    Raises:
        RetrieverError: No valid reply came within the deadline or `MAX_ATTEMPTS` calls; the message names the last
            fault.
        UsageError: The retriever returned anything but lists of hits.
    """

    def call() -> list[list[Hit]]:
        if isinstance(retriever, QuestionRetriever):
            return retriever.search_for(question_ids, queries, k)
        return retriever.search(queries, k)

    end = time.monotonic() + deadline
    pause, attempt = FIRST_PAUSE, 0
    most = 1 if getattr(retriever, "tries_again", False) else MAX_ATTEMPTS
    while True:
        attempt += 1
        try:
            here = getattr(retriever, "in_process", False)
            return checked(call() if here else call_within(call, end - time.monotonic()), len(queries), k)
        except UsageError:
            raise
        except Exception as error:
            if attempt == most or time.monotonic() + pause >= end:
                raise RetrieverError(
                    f"{type(retriever).__name__} failed {attempt} time(s) within {deadline:g} s: "
                    f"{type(error).__name__}: {error}"
                ) from error
            time.sleep(pause)
            pause *= 2


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
    """Returns a retriever's results after checking them: one list of at most k hits per query, with usable fields.

    Args:
        results: Reply of the retriever.
        expected: Number of queries.
        k: Maximum number of hits per query.

    Raises:
        UsageError: The results are not a list of lists of `Hit` records.
        RetrieverError: The number of lists or hits is wrong; or a score is not a finite number; or the id, title or
            text of a passage is not text.
    """
    if not isinstance(results, list):
        _mistaken(results, f"expected a list of {expected} lists of hits", results)
    if len(results) != expected:
        raise RetrieverError(f"expected a list of {expected} lists of hits, got {len(results)} lists")
    checked_lists = []
    for query, hits in enumerate(results, start=1):
        if not isinstance(hits, (list, tuple)):
            _mistaken(hits, f"expected a list of hits for query {query}", hits)
        if len(hits) > k:
            raise RetrieverError(f"expected at most {k} Hit records per query, got {len(hits)} for query {query}")
        for rank, hit in enumerate(hits, start=1):
            if not isinstance(hit, Hit):
                _mistaken(hit, f"expected Hit records, hit {rank} of query {query}", hits)
        checked_lists.append([_checked_hit(hit, rank, query) for rank, hit in enumerate(hits, start=1)])
    return checked_lists


def _checked_hit(hit: Hit, rank: int, query: int) -> Hit:
    """Returns a hit with its score as a plain float; error messages name its `rank` and `query`, both from 1.

    Raises:
        RetrieverError: A field cannot be used; the message names it and its value.
    """
    page: Any = hit.passage
    score: Any = hit.score
    texts = isinstance(page, Passage) and type(page.id) is type(page.title) is type(page.text) is str
    if texts and type(score) is float and math.isfinite(score):
        return hit
    where = f"hit {rank} of query {query}"
    if not isinstance(page, Passage):
        raise RetrieverError(f"{where}: passage is {page!r:.80}, expected a Passage")
    for name in ("id", "title", "text"):
        if not isinstance(value := getattr(page, name), str):
            raise RetrieverError(f"{where}: passage.{name} is {value!r:.80}, expected a text")
    number = math.nan
    if not isinstance(score, bool) and isinstance(score, numbers.Real):
        with contextlib.suppress(OverflowError):
            number = float(score)
    if not math.isfinite(number):
        raise RetrieverError(f"{where}: score is {score!r:.80}, expected a finite number")
    return Hit(page, number)


def _mistaken(got: Any, expected: str, whole: Any) -> NoReturn:
    """Raises the UsageError of a retriever that returns something of another type."""
    if inspect.iscoroutine(got):
        got.close()
        hint = ": search() is not async; a ToolRetriever calls an async function"
    else:
        hint = f" {whole!r:.120}: search(queries, k) returns a list of Hit records for each query"
    raise UsageError(f"{expected}, got {type(got).__name__}{hint}")


def identify(retriever: AnyRetriever) -> dict[str, Any]:
    """Returns a retriever's class name, its settings (``identity()``) and the corpus that it searches, as plain data.

    Two retrievers with the same identity return the same hits if their settings are complete; a user's class or a tool
    has only its name.
    """
    settings: Callable[[], dict[str, Any]] = getattr(retriever, "identity", dict)
    identity = {"retriever": type(retriever).__name__} | settings()
    if (corpus := corpus_of(retriever)) is not None:
        identity |= {"passages": len(corpus), "corpus": corpus.corpus_sha256}
    return identity


def at_step(retriever: AnyRetriever, step: int | None, steps: int) -> None:
    """Sets the training step of the next searches for a retriever and those that it wraps; most ignore it.

    Args:
        retriever: Retriever of any kind.
        step: 0-based step of training; None for validation.
        steps: Number of training steps.
    """
    if (method := getattr(retriever, "at_step", None)) is not None:
        method(step, steps)
