"""BM25 search in compiled code that visits only the posting lists of a query's terms.

The score of a passage is Lucene's BM25: the sum, over the query's terms with their repeats, of
idf * tf / (tf + k1 * (1 - b + b * L)), where idf = ln(1 + (N - df + 0.5) / (df + 0.5)) and L is the passage's number of
terms over the mean number. The summands, each rounded to float32, are added in the order of the query's terms, a
repeated term as one product: a score does not depend on the rest of the batch, nor the cost of a query on the number of
its repeats.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.analysis import analyse
from searchgym.retrieval.bm25.blocks import Floats, Ints, Longs, Postings
from searchgym.retrieval.bm25.build import Index
from searchgym.retrieval.bm25.cursors import COUNTS, Scorer, fill_row
from searchgym.retrieval.bm25.heap import BestHits, Ragged
from searchgym.retrieval.bm25.kernels import WINDOW, Scratch, search_all, search_within
from searchgym.retrieval.retriever import LocalRetriever, Passages, check_request

QUERIES: Final = 32
"""Number of queries that a thread ranks before it reads their passages, while other threads rank."""
FREQUENT: Final = 32
"""A term in at least one of this many passages has a row; see `Scorer.rows`."""
MOST_ROWS: Final = 256
"""Maximum number of rows, which take a quarter of a byte per passage each, once a query has their term."""
_MAX_THREADS: Final = 8


def contents(passage: Passage) -> str:
    """Returns the text of a passage that is indexed: title and text on separate lines."""
    return f"{passage.title}\n{passage.text}"


class BM25Retriever(LocalRetriever):
    """Retriever that searches a BM25 index. Several threads may share it.

    Ties are broken by passage order, also at rank k. A hit always has a score above 0, so a query without known words
    has no hits. The constructor compiles the code (or loads it from numba's cache), so that no search waits for it.

    Args:
        index: Index of `passages`, from `build.build_model` or an index folder.
        passages: The indexed passages, by position.
        corpus_sha256: `IndexManifest.corpus_sha256` of the index folder; None for an index in memory.
        threads: Number of threads of one search; 0 means one per core, at most 8.
    """

    def __init__(self, index: Index, passages: Passages, corpus_sha256: str | None = None, threads: int = 0) -> None:
        super().__init__(passages, corpus_sha256)
        self.index = index
        self._threads = threads or min(os.cpu_count() or 1, _MAX_THREADS)
        self._vocabulary: Mapping[str, int] = index.vocabulary
        # Read-only also in memory, as in a memory-mapped file: numba would compile again for writable arrays.
        arrays: list[Any] = [np.asarray(values).view() for values in index.postings]
        for values in arrays:
            values.setflags(write=False)
        self._postings = Postings(*arrays)
        self._scorer, self._rows = _scorer(self._postings, index.penalties())
        self._writing = threading.Lock()
        self._scratch: list[Scratch] = []  # one per search that ran at the same time
        # A tiny search with each compiled function, so that the first real one need not wait for numba.
        self.search([""], 1)
        self.search_within([""], 1, [np.zeros(1, np.int64)])

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, apart from the corpus."""
        # Without the version that built the index: if the terms are the same, so are the hits.
        analyser = f"{analysis.NAME} {self.index.since}"
        return {"kind": "bm25", "k1": self.index.k1, "b": self.index.b, "analyser": analyser}

    def __reduce__(self) -> tuple[type[BM25Retriever], tuple[Index, Passages, str | None, int]]:
        return BM25Retriever, (self.index, self._passages, self.corpus_sha256, self._threads)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the best passages for each query.

        Args:
            queries: Any texts.
            k: Number of hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            At most k hits per query, best first; fewer if fewer passages share a word with the query.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        terms, counts, best = self._prepare(queries, k)
        parts = range(0, len(queries), QUERIES)
        rank = partial(self._rank, terms, counts, best)
        if min(self._threads, len(parts)) <= 1:
            return [hits for first in parts for hits in rank(first)]
        with ThreadPoolExecutor(min(self._threads, len(parts))) as pool:
            return list(itertools.chain.from_iterable(pool.map(rank, parts)))

    def search_within(
        self, queries: Sequence[str], k: int, subsets: Sequence[npt.NDArray[np.integer[Any]]]
    ) -> list[list[Hit]]:
        """Returns the best passages for each query among a subset; scores are those of `search`.

        Args:
            queries: Any texts.
            k: Number of hits wanted per query, at least 1.
            subsets: Positions of the passages that each query may find, in any order.

        Returns:
            At most k hits per query, best first.

        Raises:
            UsageError: `queries` is a single string, `k` is below 1, the numbers of subsets and queries differ, or a
                position is not in the corpus.
        """
        if len(subsets) != len(queries):
            raise UsageError(f"search_within needs one subset per query, got {len(subsets)} for {len(queries)} queries")
        terms, counts, best = self._prepare(queries, k)
        allowed = _ragged([np.unique(np.asarray(subset, np.int64)) for subset in subsets])
        if len(allowed.values) and not (allowed.values.min() >= 0 and allowed.values.max() < len(self._passages)):
            raise UsageError(
                f"subset positions must be in [0, {len(self._passages)}), got {allowed.values.min()} to "
                f"{allowed.values.max()}"
            )
        search_within(self._postings, self._scorer, terms, counts, allowed, best)
        return self._hits(best, 0, len(queries))

    def _rank(self, terms: Ragged, counts: Floats, best: BestHits, first: int) -> list[list[Hit]]:
        """Returns the hits of at most `QUERIES` queries, ranked in working memory that no other thread uses."""
        last = min(first + QUERIES, len(best.sizes))
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = Scratch(np.zeros(WINDOW, np.float32), np.empty(WINDOW, np.int32))
        search_all(self._postings, self._scorer, terms, counts, scratch, best, first, last)
        self._scratch.append(scratch)
        return self._hits(best, first, last)

    def _write_rows(self, terms: Iterable[int]) -> None:
        """Writes the rows of frequent terms that no query has had before."""
        if missing := [term for term in terms if self._rows[term] >= 0 > self._scorer.row_of[term]]:
            with self._writing:
                for term in missing:
                    if self._scorer.row_of[term] < 0:
                        fill_row(self._postings, term, self._scorer.rows[self._rows[term]])
                        self._scorer.row_of[term] = self._rows[term]  # only now: other searches may be running

    def _prepare(self, queries: Sequence[str], k: int) -> tuple[Ragged, Floats, BestHits]:
        """Returns the known terms of each query, the number of occurrences of each, and arrays for the hits."""
        check_request(queries, k)
        vocabulary = self._vocabulary
        bags = [Counter([vocabulary[term] for term in analyse(query) if term in vocabulary]) for query in queries]
        self._write_rows(set().union(*bags))
        counts = np.array([count for bag in bags for count in bag.values()], np.float32)
        shape = (len(queries), min(k, len(self._passages)))
        best = BestHits(np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(len(queries), np.int64))
        return _ragged(bags), counts, best

    def _hits(self, best: BestHits, first: int, last: int) -> list[list[Hit]]:
        """Returns the hits of the queries ``first`` to ``last - 1`` as records, one list per query."""
        sizes = best.sizes[first:last].tolist()
        positions, scores = best.passages[first:last], best.scores[first:last]
        return self._hits_at(
            [row[:size].tolist() for row, size in zip(positions, sizes, strict=True)],
            [row[:size].tolist() for row, size in zip(scores, sizes, strict=True)],
        )


def _scorer(postings: Postings, penalties: npt.NDArray[np.float64]) -> tuple[Scorer, Ints]:
    """Returns a scorer without written rows, and the row that each term may get, -1 if none."""
    shares = np.concatenate([count / (count + penalties) for count in range(1, COUNTS + 1)]).astype(np.float32)
    passages = len(postings.lengths)
    frequent = np.argsort(-postings.sizes, kind="stable")[:MOST_ROWS]
    frequent = frequent[FREQUENT * postings.sizes[frequent].astype(np.int64) >= passages]
    rows = np.full(len(postings.sizes), -1, np.int32)
    rows[frequent] = np.arange(len(frequent))
    none = np.full(len(rows), -1, np.int32)
    return Scorer(penalties, shares, np.zeros((len(frequent), passages // 32 + 1), np.uint64), none), rows


def _ragged(lists: Sequence[Collection[int] | Longs]) -> Ragged:
    """Concatenates lists of integers."""
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Ragged(np.fromiter(itertools.chain.from_iterable(lists), np.int64, count=starts[-1]), starts)
