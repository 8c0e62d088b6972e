"""Several retrievers as one: reciprocal rank fusion."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from searchgym.corpora.retrieval.retriever import Retriever, check_request, checked
from searchgym.corpora.retrieval.wrappers.wrapper import Wrapper
from searchgym.errors import UsageError
from searchgym.records import Hit, Passage


class HybridRetriever(Wrapper):
    """Joins the lists of several retrievers by rank: scores of different scales are not compared.

    The score of a passage is the sum of 1 / (constant + rank) over the lists that hold it, ranks from 1. Ties go to
    the passage with the best single rank, then to that of the earlier retriever. Source: Cormack, Clarke and Buettcher,
    "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009.

    Args:
        retrievers: One or more, over the same corpus: passages are the same if their ids are.
        depth: Hits taken from each; never fewer than the hits asked for.
        constant: Added to each rank; at least 0.

    Raises:
        UsageError: No retriever, or two over different corpora.
    """

    def __init__(self, retrievers: Sequence[Retriever], depth: int = 100, constant: int = 60) -> None:
        if not retrievers:
            raise UsageError("a hybrid joins one retriever or more, got none")
        super().__init__(*retrievers)
        self.depth, self.constant = depth, constant
        corpora = {getattr(one, "corpus_sha256", None) for one in retrievers if hasattr(one, "passages")} - {None}
        if len(corpora) > 1:
            raise UsageError(f"a hybrid joins retrievers over one corpus, got {', '.join(sorted(map(str, corpora)))}")

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        depth = max(self.depth, k)
        lists = [checked(one.search(queries, depth), len(queries), depth) for one in self.inner]
        return [fuse(own, k, self.constant) for own in zip(*lists, strict=True)]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        return {"kind": "hybrid", "depth": self.depth, "constant": self.constant} | super().identity()


def fuse(lists: Sequence[Sequence[Hit]], k: int, constant: int = 60) -> list[Hit]:
    """Returns the k best passages of some lists by reciprocal rank fusion; see `HybridRetriever`.

    Args:
        lists: Best first; a passage that a list holds twice counts where it is first.
        k: Hits wanted.
        constant: Added to each rank.
    """
    passages: dict[str, Passage] = {}
    ranks: dict[str, list[tuple[int, int]]] = {}  # by id: rank and number of each list that holds the passage
    for number, hits in enumerate(lists):
        for rank, hit in enumerate(hits, start=1):
            own = ranks.setdefault(hit.passage.id, [])
            if not own or own[-1][1] != number:
                own.append((rank, number))
                passages.setdefault(hit.passage.id, hit.passage)
    # fsum rounds once: ranks that are the same in another order of the lists are a tie, to the bit
    fused = ((-math.fsum([1.0 / (constant + rank) for rank, _ in own]), min(own), id) for id, own in ranks.items())
    return [Hit(passages[id], -score) for score, _, id in heapq.nsmallest(k, fused)]
