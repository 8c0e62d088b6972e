"""BM25 search over a bm25s index: only the posting lists of a query are visited, in compiled code.

The score of a passage is the sum, over the query's terms with their repeats, of idf * tf / (tf + k1 * (1 - b + b * L)),
where idf = ln(1 + (N - df + 0.5) / (df + 0.5)) and L is the passage's number of terms over the mean number: Lucene's
BM25, precomputed by bm25s as one float32 per posting. The sum runs in the query's order, with a repeated term as one
product: a score does not depend on what else is in the batch, nor a query's cost on how often it says the same.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import bm25s
import numba
import numpy as np
import numpy.typing as npt

from searchgym.corpora.retrieval.analysis import analyse
from searchgym.errors import UsageError
from searchgym.records import Hit, Passage

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when imported

_WORK_OF_A_THREAD = 2_000_000  # postings to visit, a few milliseconds: less is not worth starting a thread
_MAX_THREADS: Final = 8  # each needs an array of one float32 per passage

F = TypeVar("F", bound=Callable[..., Any])
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Scalar = Any  # of a kernel: float32 or an integer, which numba infers


class Postings(NamedTuple):
    """The inverted index: the postings of term t are at ``starts[t] : starts[t + 1]``."""

    scores: Floats
    """(P,) float32, above 0."""
    passages: Ints
    """(P,) int32 passage positions, ascending within a term."""
    starts: Longs
    """(V + 1,) int64."""


class Ragged(NamedTuple):
    """One list of whole numbers per query, laid end to end: list q is ``values[starts[q] : starts[q + 1]]``."""

    values: Longs
    starts: Longs


class Found(NamedTuple):
    """Hits of Q queries, best first; what is beyond a query's size is garbage."""

    scores: Floats
    """(Q, k) float32."""
    passages: Ints
    """(Q, k) int32 positions."""
    sizes: Longs
    """(Q,) int64 number of hits."""


def kernel(function: F) -> F:
    """Compiles a function at its first call, keeping the machine code on disk where some folder can be written."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the package folder nor the user's cache folder is writable
        return cast(F, numba.njit(nogil=True)(function))


# -- kernels -------------------------------------------------------------------------------------------------------
# A binary heap of the best hits so far, the worst at its root: lower score, or same score and later passage.


@kernel
def _worse(score: Scalar, passage: Scalar, other_score: Scalar, other_passage: Scalar) -> bool:
    """Returns True if the first hit ranks after the second."""
    return bool(score < other_score or (score == other_score and passage > other_passage))


@kernel
def _sink(scores: Floats, passages: Ints, size: int, score: Scalar, passage: Scalar) -> None:
    """Replaces the root of a heap of `size` hits by a new hit and restores the heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _worse(scores[child + 1], passages[child + 1], scores[child], passages[child]):
            child += 1
        if not _worse(scores[child], passages[child], score, passage):
            break
        scores[at], passages[at] = scores[child], passages[child]
        at = child
    scores[at], passages[at] = score, passage


@kernel
def _rise(scores: Floats, passages: Ints, size: int, score: Scalar, passage: Scalar) -> None:
    """Adds a hit to a heap of `size` hits."""
    at = size
    while at > 0 and _worse(score, passage, scores[(at - 1) // 2], passages[(at - 1) // 2]):
        scores[at], passages[at] = scores[(at - 1) // 2], passages[(at - 1) // 2]
        at = (at - 1) // 2
    scores[at], passages[at] = score, passage


@kernel
def _offer(scores: Floats, passages: Ints, size: int, score: Scalar, passage: Scalar) -> int:
    """Puts a hit into a heap with room for `len(scores)` hits if it is among the best; returns the new size."""
    if size < len(scores):
        _rise(scores, passages, size, score, passage)
        return size + 1
    if _worse(scores[0], passages[0], score, passage):
        _sink(scores, passages, size, score, passage)
    return size


@kernel
def _sort(scores: Floats, passages: Ints, size: int) -> None:
    """Turns a heap of `size` hits into a list, best first."""
    for last in range(size - 1, 0, -1):
        score, passage = scores[last], passages[last]
        scores[last], passages[last] = scores[0], passages[0]
        _sink(scores, passages, last, score, passage)


@kernel
def _search(
    postings: Postings, terms: Ragged, counts: Floats, total: Floats, found: Found, first: int, last: int
) -> None:
    """Ranks all passages for some of the queries.

    Args:
        postings: The index.
        terms: Term ids of each query, without repeats.
        counts: How often each of them occurs in its query.
        total: (N,) float32 zeros; zeros again afterwards.
        found: To be filled.
        first: First query to do.
        last: Query before which to stop.
    """
    for query in range(first, last):
        own = range(terms.starts[query], terms.starts[query + 1])
        for i in own:
            term = terms.values[i]
            for at in range(postings.starts[term], postings.starts[term + 1]):
                total[postings.passages[at]] += counts[i] * postings.scores[at]
        scores, passages = found.scores[query], found.passages[query]
        size, floor = 0, np.float32(0)
        for i in own:
            term = terms.values[i]
            for at in range(postings.starts[term], postings.starts[term + 1]):
                passage = postings.passages[at]
                score = total[passage]
                if score > 0:
                    total[passage] = 0
                    if size < len(scores) or score >= floor:
                        size = _offer(scores, passages, size, score, passage)
                        floor = scores[0]
        _sort(scores, passages, size)
        found.sizes[query] = size


@kernel
def _search_within(postings: Postings, terms: Ragged, counts: Floats, subsets: Ragged, found: Found) -> None:
    """Ranks each query's own passages, given as positions, looking each up in the postings of each term."""
    for query in range(len(found.sizes)):
        own = range(terms.starts[query], terms.starts[query + 1])
        scores, passages = found.scores[query], found.passages[query]
        size = 0
        for passage in subsets.values[subsets.starts[query] : subsets.starts[query + 1]]:
            score = np.float32(0)
            for i in own:
                start, end = postings.starts[terms.values[i]], postings.starts[terms.values[i] + 1]
                at = start + np.searchsorted(postings.passages[start:end], passage)
                if at < end and postings.passages[at] == passage:
                    score += counts[i] * postings.scores[at]
            if score > 0:
                size = _offer(scores, passages, size, score, passage)
        _sort(scores, passages, size)
        found.sizes[query] = size


# -- index and retriever -------------------------------------------------------------------------------------------


class Passages(Protocol):
    """Passages by position: a list, or a `PassageStore`."""

    def __len__(self) -> int:
        """Returns the number of passages."""
        ...

    def __getitem__(self, position: int, /) -> Passage:
        """Returns the passage at a position."""
        ...

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        ...


def contents(passage: Passage) -> str:
    """Returns the text that is indexed: title and text, each on its own line."""
    return f"{passage.title}\n{passage.text}"


class BM25Retriever:
    """Searches a BM25 index. Safe to use from several threads; a copy is the retriever itself.

    Ties are broken by passage order, at the boundary too. A hit always has a score above 0: a query without known words
    has no hits. Compiles its code (or loads it from numba's cache) when constructed, so that no search has to.

    Args:
        model: A bm25s index of `passages`, built by `bm25_build` or loaded.
        passages: The indexed passages, by position.
        corpus_sha256: `Manifest.corpus_sha256` of the index folder it comes from, None if there is none.
    """

    in_process = True  # a search cannot hang: `retrieve` need not watch it from another thread

    def __init__(self, model: bm25s.BM25, passages: Passages, corpus_sha256: str | None = None) -> None:
        self.model = model
        self.corpus_sha256 = corpus_sha256
        self._passages = passages
        self._vocabulary: Mapping[str, int] = model.vocab_dict
        # Read-only in memory as in a memory-mapped file: the kernels are compiled for one kind of array only.
        arrays = [np.asarray(model.scores[name]).view() for name in ("data", "indices", "indptr")]
        for values in arrays:
            values.setflags(write=False)
        self._postings = Postings(*arrays)
        self._totals: list[Floats] = []  # one array of zeros per search that ran at the same time
        self.warm_up()

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._passages)

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        return iter(self._passages)

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, 0 to len - 1."""
        return self._passages[position]

    def __deepcopy__(self, memo: dict[int, Any]) -> BM25Retriever:
        return self

    def __reduce__(self) -> tuple[type[BM25Retriever], tuple[bm25s.BM25, Passages, str | None]]:
        return BM25Retriever, (self.model, self._passages, self.corpus_sha256)

    def warm_up(self) -> None:
        """Runs one tiny search of each kind, so that compilation happens now."""
        self.search([""], 1)
        self.search_within([""], 1, [np.zeros(1, np.int64)])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the best passages for each query.

        Args:
            queries: Any texts.
            k: Hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            Per query at most k hits, best first, fewer where fewer passages share a word with the query.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        terms, counts, found = self._prepare(queries, k)
        starts = self._postings.starts
        work = int((starts[terms.values + 1] - starts[terms.values]).sum())
        parts = min(len(queries), os.cpu_count() or 1, _MAX_THREADS, 1 + work // _WORK_OF_A_THREAD)
        if parts <= 1:
            self._rank(terms, counts, found, 0, len(queries))
        else:
            cuts = [len(queries) * part // parts for part in range(parts + 1)]
            with ThreadPoolExecutor(parts) as pool:
                list(pool.map(partial(self._rank, terms, counts, found), cuts[:-1], cuts[1:]))
        return self._hits(found)

    def search_within(
        self, queries: Sequence[str], k: int, subsets: Sequence[npt.NDArray[np.integer[Any]]]
    ) -> list[list[Hit]]:
        """Returns the best passages for each query among its own; scores are those of `search`.

        Args:
            queries: Any texts.
            k: Hits wanted per query, at least 1.
            subsets: Passage positions that each query may find, in any order.

        Raises:
            UsageError: As `search`; or there is not one subset per query, or a position is not in the corpus.
        """
        if len(subsets) != len(queries):
            raise UsageError(f"search_within needs one subset per query, got {len(subsets)} for {len(queries)} queries")
        terms, counts, found = self._prepare(queries, k)
        own = _ragged([np.unique(np.asarray(subset, np.int64)) for subset in subsets])
        if len(own.values) and not (own.values.min() >= 0 and own.values.max() < len(self._passages)):
            raise UsageError(
                f"subset positions must be in [0, {len(self._passages)}), got {own.values.min()} to {own.values.max()}"
            )
        _search_within(self._postings, terms, counts, own, found)
        return self._hits(found)

    def _rank(self, terms: Ragged, counts: Floats, found: Found, first: int, last: int) -> None:
        """Runs the kernel for some of the queries, with an array of zeros that no other thread has."""
        try:
            total = self._totals.pop()
        except IndexError:
            total = np.zeros(len(self._passages), np.float32)
        _search(self._postings, terms, counts, total, found, first, last)
        self._totals.append(total)

    def _prepare(self, queries: Sequence[str], k: int) -> tuple[Ragged, Floats, Found]:
        """Returns the known terms of each query, how often each occurs, and room for the hits."""
        if isinstance(queries, str):
            raise UsageError(f"queries must be a list of strings, got the string {queries[:80]!r}")
        if k < 1:
            raise UsageError(f"k must be at least 1, got {k}")
        known = self._vocabulary
        bags = [Counter([known[term] for term in analyse(query) if term in known]) for query in queries]
        counts = np.array([count for bag in bags for count in bag.values()], np.float32)
        shape = (len(queries), min(k, len(self._passages)))
        found = Found(np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(len(queries), np.int64))
        return _ragged(bags), counts, found

    def _hits(self, found: Found) -> list[list[Hit]]:
        """Returns the found passages as records."""
        rows = zip(found.passages, found.scores, found.sizes, strict=True)
        return [
            [Hit(self._passages[p], s) for p, s in zip(passages[:n].tolist(), scores[:n].tolist(), strict=True)]
            for passages, scores, n in rows
        ]


def _ragged(lists: Sequence[Collection[int] | Longs]) -> Ragged:
    """Lays lists of whole numbers end to end."""
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Ragged(np.fromiter(itertools.chain.from_iterable(lists), np.int64, count=starts[-1]), starts)
