"""Ranking metrics, and grouping of similar queries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from searchgym.scoring.answers import normalise_answer

CUTS: Final = (1, 3, 5)
"""Values of k whose Hit@k `mean_hit` averages."""


def ndcg(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Computes nDCG@k, with linear gain and a discount of log2(rank + 1), relative to the ideal order.

    Args:
        gains: Relevance of each passage, in ranked order.
        relevant: Relevance of all relevant passages, at least one, in any order.
        k: Number of top ranks that count.
    """

    def dcg(values: Sequence[int]) -> float:
        return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(values[:k], start=1))

    return dcg(gains) / dcg(sorted(relevant, reverse=True))


def mean_hit(gains: Sequence[int]) -> float:
    """Computes the mean of Hit@1, Hit@3 and Hit@5, where Hit@k is 1 if one of the first k passages is relevant, else 0.

    Source: CoSearch, arXiv 2604.17555, its relevance reward.
    """
    return sum(any(gains[:cut]) for cut in CUTS) / len(CUTS)


def alike(queries: Sequence[str], overlap: float) -> list[int]:
    """Groups similar queries and returns the group number of each query.

    In order, each query joins the first group whose first query has a token F1 of at least `overlap` with it (SQuAD's
    normalisation); otherwise it starts a new group.

    Source: CoSearch, arXiv 2604.17555: greedy clusters around a representative, overlap 0.8. The choice of the first of
        several matching groups is ours.

    Args:
        queries: The queries.
        overlap: Smallest token F1, above 0 and at most 1.
    """
    first: list[Counter[str]] = []
    groups = []
    for query in queries:
        words = Counter(normalise_answer(query).split())
        group = len(first)
        for number, other in enumerate(first):
            total = words.total() + other.total()
            if not total or 2 * (words & other).total() / total >= overlap:  # one quotient: 4 of 5 words reach 0.8
                group = number
                break
        if group == len(first):
            first.append(words)
        groups.append(group)
    return groups
