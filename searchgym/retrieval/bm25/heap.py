"""Compiled heaps of the best hits, and the arrays in which queries and hits are handed to compiled functions."""

from __future__ import annotations

from typing import NamedTuple

from searchgym.retrieval.bm25.blocks import Floats, Ints, Longs, Scalar, uncounted


class Ragged(NamedTuple):
    """One list of integers per query, concatenated: list q is ``values[starts[q] : starts[q + 1]]``."""

    values: Longs
    """(T,) int64 values of all lists, one list after the other."""
    starts: Longs
    """(Q + 1,) int64 offsets of the lists."""


class BestHits(NamedTuple):
    """Hits of Q queries, best first; entries beyond a query's number of hits are undefined."""

    scores: Floats
    """(Q, k) float32 scores of the hits."""
    passages: Ints
    """(Q, k) int32 passage positions of the hits."""
    sizes: Longs
    """(Q,) int64 number of hits per query."""


# The best hits so far are in a heap with the worst at its root: lower score, or same score and later passage.


@uncounted
def _worse(score: Scalar, passage: Scalar, other_score: Scalar, other_passage: Scalar) -> bool:
    """Returns whether the first hit ranks after the second."""
    return bool(score < other_score or (score == other_score and passage > other_passage))


@uncounted
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


@uncounted
def offer(scores: Floats, passages: Ints, size: int, score: Scalar, passage: Scalar) -> int:
    """Puts a hit into a heap with room for `len(scores)` hits if it is among the best; returns the new size."""
    if size < len(scores):
        at = size
        while at > 0 and _worse(score, passage, scores[(at - 1) // 2], passages[(at - 1) // 2]):
            scores[at], passages[at] = scores[(at - 1) // 2], passages[(at - 1) // 2]
            at = (at - 1) // 2
        scores[at], passages[at] = score, passage
        return size + 1
    if _worse(scores[0], passages[0], score, passage):
        _sink(scores, passages, size, score, passage)
    return size


@uncounted
def sort_hits(scores: Floats, passages: Ints, size: int) -> None:
    """Turns a heap of `size` hits into a list, best first."""
    for last in range(size - 1, 0, -1):
        score, passage = scores[last], passages[last]
        scores[last], passages[last] = scores[0], passages[0]
        _sink(scores, passages, last, score, passage)
