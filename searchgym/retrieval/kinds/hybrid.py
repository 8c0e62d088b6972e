"""Retriever ``hybrid``: the hits of several retrievers, merged by reciprocal rank fusion."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import Retriever, check_request, checked
from searchgym.retrieval.wrapper import Wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCard(RetrieverCard):
    """Several retrievers whose hits are merged by reciprocal rank fusion; see `HybridRetriever`."""

    of: list[RetrieverCard]
    """Cards of the retrievers whose hits are merged, two or more."""
    depth: Annotated[int, Interval(ge=1, le=1e5)] = 100
    """Number of hits taken from each retriever, raised to k if that is larger."""
    constant: Annotated[int, Interval(ge=0, le=1e6)] = 60
    """Constant added to each rank before its reciprocal is taken."""
    ties: Literal["rank", "score"] = "rank"
    """What decides between passages of equal sums: the best rank, or the best score, for retrievers with scores on one
    scale. With constant 0, ``score`` is the rank-score fusion of ACQO."""

    @override
    def problems(self) -> Iterable[str]:
        if len(self.of) < 2:
            yield f"hybrid needs at least two retrievers, got {len(self.of)}"

    @override
    def open(self, sources: Sources) -> HybridRetriever:
        return HybridRetriever([sources.open(card) for card in self.of], self.depth, self.constant, self.ties)


class HybridRetriever(Wrapper):
    """Retriever that merges the hits of several retrievers by rank, since their scores may have different scales.

    The score of a passage is the sum of 1 / (constant + rank) over the lists that hold it, ranks counted from 1. Ties
    go to the passage with the best single rank, or the best score, then to that of the earlier retriever. Sources:
    Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning methods",
    SIGIR 2009; ACQO, arXiv 2601.21208, whose rank-score fusion has constant 0 and decides ties by score.

    Args:
        retrievers: One or more retrievers over the same corpus; passages with equal ids count as the same.
        depth: Number of hits taken from each retriever, raised to k if that is larger.
        constant: Constant added to each rank, at least 0.
        ties: ``rank`` or ``score``; see `HybridCard`.

    Raises:
        UsageError: No retriever is given, or their corpora differ.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], depth: int = 100, constant: int = 60, ties: str = "rank"
    ) -> None:
        if not retrievers:
            raise UsageError("a hybrid needs at least one retriever, got none")
        super().__init__(*retrievers)
        self.depth, self.constant, self.ties = depth, constant, ties
        corpora = {getattr(each, "corpus_sha256", None) for each in retrievers if hasattr(each, "passages")} - {None}
        if len(corpora) > 1:
            raise UsageError(f"a hybrid needs retrievers over one corpus, got {', '.join(sorted(map(str, corpora)))}")

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        depth = max(self.depth, k)
        lists = [checked(retriever.search(queries, depth), len(queries), depth) for retriever in self.inner]
        return [fuse(of_query, k, self.constant, self.ties) for of_query in zip(*lists, strict=True)]

    @override
    def identity(self) -> dict[str, Any]:
        settings = {"kind": "hybrid", "depth": self.depth, "constant": self.constant}
        return settings | ({} if self.ties == "rank" else {"ties": self.ties}) | super().identity()


def fuse(lists: Sequence[Sequence[Hit]], k: int, constant: int = 60, ties: str = "rank") -> list[Hit]:
    """Returns the k best passages of some lists by reciprocal rank fusion; see `HybridRetriever`.

    Args:
        lists: Lists of hits, best first; of a passage that a list holds twice, the first rank counts.
        k: Number of hits wanted.
        constant: Constant added to each rank.
        ties: ``rank`` or ``score``; see `HybridCard`.
    """
    passages: dict[str, Passage] = {}
    scores: dict[str, float] = {}
    ranks: dict[str, list[tuple[int, int]]] = {}  # passage id to (rank, number of the list) of each list that holds it
    for number, hits in enumerate(lists):
        for rank, hit in enumerate(hits, start=1):
            ranks_of_passage = ranks.setdefault(hit.passage.id, [])
            if not ranks_of_passage or ranks_of_passage[-1][1] != number:
                ranks_of_passage.append((rank, number))
                passages.setdefault(hit.passage.id, hit.passage)
                scores[hit.passage.id] = max(hit.score, scores.get(hit.passage.id, -math.inf))
    # fsum rounds only once: passages with the same ranks in a different order of lists tie exactly.
    fused = (
        (
            -math.fsum([1.0 / (constant + rank) for rank, _ in ranks_of_passage]),
            -scores[id] if ties == "score" else 0.0,
            min(ranks_of_passage),
            id,
        )
        for id, ranks_of_passage in ranks.items()
    )
    return [Hit(passages[id], -score) for score, *_, id in heapq.nsmallest(k, fused)]
