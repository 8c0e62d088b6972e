"""BM25 search over a bm25s index, in compiled code that visits only the posting lists of a query's terms.

The score of a passage is Lucene's BM25: the sum, over the query's terms with their repeats, of
idf * tf / (tf + k1 * (1 - b + b * L)), where idf = ln(1 + (N - df + 0.5) / (df + 0.5)) and L is the passage's number of
terms over the mean number. The index holds the summands, one float32 per posting. They are added in the order of the
query's terms, a repeated term as one product: a score does not depend on the rest of the batch, nor the cost of a query
on the number of its repeats.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import bm25s
import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.analysis import analyse
from searchgym.retrieval.bm25.kernels import (
    BestHits,
    Floats,
    Longs,
    Postings,
    Ragged,
    Scratch,
    search_all,
    search_within,
)
from searchgym.retrieval.retriever import LocalRetriever, Passages, check_request

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when imported

_WORK_OF_A_THREAD = 2_000_000  # postings, visited in a few milliseconds: with fewer, starting a thread does not pay
_MAX_THREADS: Final = 8  # each thread needs eight bytes of memory per passage


def contents(passage: Passage) -> str:
    """Returns the text of a passage that is indexed: title and text on separate lines."""
    return f"{passage.title}\n{passage.text}"


class BM25Retriever(LocalRetriever):
    """Retriever that searches a BM25 index. Several threads may share it.

    Ties are broken by passage order, also at rank k. A hit always has a score above 0, so a query without known words
    has no hits. The constructor compiles the code (or loads it from numba's cache), so that no search waits for it.

    Args:
        model: A bm25s index of `passages`, from `build.merge` or `build.load_model`.
        passages: The indexed passages, by position.
        corpus_sha256: `IndexManifest.corpus_sha256` of the index folder; None for an index in memory.
        threads: Number of threads of one search; 0 means one per core, at most 8.
    """

    def __init__(
        self, model: bm25s.BM25, passages: Passages, corpus_sha256: str | None = None, threads: int = 0
    ) -> None:
        super().__init__(passages, corpus_sha256)
        self.model = model
        self._threads = threads or min(os.cpu_count() or 1, _MAX_THREADS)
        self._vocabulary: Mapping[str, int] = model.vocab_dict
        # Read-only also in memory, as in a memory-mapped file: numba would compile again for writable arrays.
        arrays = [np.asarray(model.scores[name]).view() for name in ("data", "indices", "indptr", "maxima")]
        for values in arrays:
            values.setflags(write=False)
        self._postings = Postings(*arrays)
        self._scratch: list[Scratch] = []  # one per search that ran at the same time
        # A tiny search with each compiled function, so that the first real one need not wait for numba.
        self.search([""], 1)
        self.search_within([""], 1, [np.zeros(1, np.int64)])

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, apart from the corpus."""
        # Without the version that built the index: if the terms are the same, so are the hits.
        analyser = f"{analysis.NAME} {self.model.scores['terms_since']}"
        return {"kind": "bm25", "k1": self.model.k1, "b": self.model.b, "analyser": analyser}

    def __reduce__(self) -> tuple[type[BM25Retriever], tuple[bm25s.BM25, Passages, str | None, int]]:
        return BM25Retriever, (self.model, self._passages, self.corpus_sha256, self._threads)

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
        starts = self._postings.starts
        work = int((starts[terms.values + 1] - starts[terms.values]).sum())
        threads = min(len(queries), self._threads, 1 + work // _WORK_OF_A_THREAD)
        if threads <= 1:
            self._rank(terms, counts, best, 0, len(queries))
        else:
            cuts = [len(queries) * thread // threads for thread in range(threads + 1)]
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(partial(self._rank, terms, counts, best), cuts[:-1], cuts[1:]))
        return self._hits(best)

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
        search_within(self._postings, terms, counts, allowed, best)
        return self._hits(best)

    def _rank(self, terms: Ragged, counts: Floats, best: BestHits, first: int, last: int) -> None:
        """Ranks the queries ``first`` to ``last - 1``, with working memory that no other thread uses."""
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = Scratch(np.zeros(len(self._passages), np.float32), np.empty(len(self._passages), np.int32))
        search_all(self._postings, terms, counts, scratch, best, first, last)
        self._scratch.append(scratch)

    def _prepare(self, queries: Sequence[str], k: int) -> tuple[Ragged, Floats, BestHits]:
        """Returns the known terms of each query, the number of occurrences of each, and arrays for the hits."""
        check_request(queries, k)
        vocabulary = self._vocabulary
        bags = [Counter([vocabulary[term] for term in analyse(query) if term in vocabulary]) for query in queries]
        counts = np.array([count for bag in bags for count in bag.values()], np.float32)
        shape = (len(queries), min(k, len(self._passages)))
        best = BestHits(np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(len(queries), np.int64))
        return _ragged(bags), counts, best

    def _hits(self, best: BestHits) -> list[list[Hit]]:
        """Returns the hits as records, one list per query."""
        rows = zip(best.passages, best.scores, best.sizes, strict=True)
        return [
            [Hit(self._passages[p], s) for p, s in zip(passages[:n].tolist(), scores[:n].tolist(), strict=True)]
            for passages, scores, n in rows
        ]


def _ragged(lists: Sequence[Collection[int] | Longs]) -> Ragged:
    """Concatenates lists of integers."""
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Ragged(np.fromiter(itertools.chain.from_iterable(lists), np.int64, count=starts[-1]), starts)
