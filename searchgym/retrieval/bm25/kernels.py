"""Compiled functions of BM25 search: sums over posting lists, and heaps of the best hits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Scalar = Any  # argument of a compiled function: float32 or an integer, as numba infers


class Postings(NamedTuple):
    """The inverted index of P postings and V terms; those of term t are at ``starts[t] : starts[t + 1]``."""

    scores: Floats
    """(P,) float32 scores of the postings, above 0."""
    passages: Ints
    """(P,) int32 passage positions, ascending within a term."""
    starts: Longs
    """(V + 1,) int64 offsets of each term's postings."""
    maxima: Floats
    """(V,) float32 largest score of each term."""


class Scratch(NamedTuple):
    """Working memory of one search over N passages; only one search may use it at a time."""

    total: Floats
    """(N,) float32 sums of scores by passage; all zero before and after a search."""
    candidates: Ints
    """(N,) int32 passages whose sum is above 0; only the first `count` entries are valid."""


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


def kernel(function: F) -> F:
    """Compiles a function at its first call and caches the machine code on disk if a cache folder is writable."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the package folder nor the user's cache folder is writable
        return cast(F, numba.njit(nogil=True)(function))


# The best hits so far are in a heap with the worst at its root: lower score, or same score and later passage.


@kernel
def _worse(score: Scalar, passage: Scalar, other_score: Scalar, other_passage: Scalar) -> bool:
    """Returns whether the first hit ranks after the second."""
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
def _offer(scores: Floats, passages: Ints, size: int, score: Scalar, passage: Scalar) -> int:
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


@kernel
def _sort(scores: Floats, passages: Ints, size: int) -> None:
    """Turns a heap of `size` hits into a list, best first."""
    for last in range(size - 1, 0, -1):
        score, passage = scores[last], passages[last]
        scores[last], passages[last] = scores[0], passages[0]
        _sink(scores, passages, last, score, passage)


@kernel
def search_all(
    postings: Postings, terms: Ragged, counts: Floats, scratch: Scratch, best: BestHits, first: int, last: int
) -> None:
    """Ranks all passages for the queries ``first`` to ``last - 1``.

    Rare terms come first. As soon as the k-th best sum exceeds everything that the remaining terms could add, no new
    passage can reach the top k: from then on only the sums of passages that still can are updated (MaxScore, Turtle
    and Flood 1995, term at a time). The scores of the best are then computed again in the order of the query's terms,
    so that the hits are bit by bit those of visiting every posting.

    Args:
        postings: The index.
        terms: Term ids of each query, without repeats.
        counts: (T,) float32 number of occurrences of each of these terms in its query.
        scratch: Working memory of this thread.
        best: Arrays that receive the hits.
        first: First query to process.
        last: Query before which to stop.
    """
    for query in range(first, last):
        start, end = terms.starts[query], terms.starts[query + 1]
        ids, weights = terms.values[start:end], counts[start:end]
        sizes = postings.starts[ids + 1] - postings.starts[ids]
        scores, passages = best.scores[query], best.passages[query]
        count = _gather(postings, ids, weights, np.argsort(sizes), scratch, scores, passages)
        # Sums so far have another order of terms than final scores: rounding may lift one into the top k.
        least = _kth(scratch, count, scores, passages) * (1 - 2 * _slack(len(ids)))
        size = 0
        for i in range(count):
            passage = scratch.candidates[i]
            if scratch.total[passage] >= least:
                score = _score(postings, ids, weights, passage)
                size = _offer(scores, passages, size, score, passage)
            scratch.total[passage] = 0
        _sort(scores, passages, size)
        best.sizes[query] = size


@kernel
def _gather(
    postings: Postings,
    terms: Longs,
    weights: Floats,
    order: Longs,
    scratch: Scratch,
    scores: Floats,
    passages: Ints,
) -> int:
    """Sums scores by passage, in the `order` of rare terms first; returns the number of candidates with the k best.

    `scores` and `passages` are working memory of length k.
    """
    slack = _slack(len(terms))
    rest = 0.0  # upper bound of what the remaining terms can add to a sum; `done` is that of the terms so far
    for i in order:
        rest += weights[i] * postings.maxima[terms[i]]
    done, count, closed, ascending = 0.0, 0, False, False
    for i in order:
        first, last = postings.starts[terms[i]], postings.starts[terms[i] + 1]
        # Finding the k-th best sum visits every candidate, so it is done only where it can save more visits.
        if count >= len(scores) and done > rest and count < 4 * (last - first):
            floor = _kth(scratch, count, scores, passages) * (1 - slack)
            if floor > rest * (1 + slack):
                closed = True
                count = _keep(scratch, count, floor - rest * (1 + slack))
        if not closed:
            count = _add_all(postings, first, last, weights[i], scratch, count)
        elif 16 * count < last - first:  # few candidates: searching for each is faster than visiting all postings
            if not ascending:
                scratch.candidates[:count].sort()
                ascending = True
            _add_each(postings, first, last, weights[i], scratch, count)
        else:  # adds to the sums of the candidates only
            for at in range(first, last):
                passage = postings.passages[at]
                if scratch.total[passage] > 0:
                    scratch.total[passage] += weights[i] * postings.scores[at]
        rest -= weights[i] * postings.maxima[terms[i]]
        done += weights[i] * postings.maxima[terms[i]]
    return count


@kernel
def _slack(terms: int) -> float:
    """Returns an upper bound of the relative rounding error of a sum of `terms` float32 numbers in any order."""
    return 2.4e-7 * (terms + 8)


@kernel
def _kth(scratch: Scratch, count: int, scores: Floats, passages: Ints) -> float:
    """Returns the k-th best sum of the candidates, 0 if there are fewer; the last two are scratch of length k."""
    size, floor = 0, np.float32(0)
    for i in range(count):
        passage = scratch.candidates[i]
        score = scratch.total[passage]
        if size < len(scores) or score > floor:
            size = _offer(scores, passages, size, score, passage)
            floor = scores[0]
    return float(floor) if size == len(scores) else 0.0


@kernel
def _keep(scratch: Scratch, count: int, least: Scalar) -> int:
    """Drops the candidates whose sum is below `least`, keeping the order, and returns the number left."""
    left = 0
    for i in range(count):
        passage = scratch.candidates[i]
        if scratch.total[passage] >= least:
            scratch.candidates[left] = passage
            left += 1
        else:
            scratch.total[passage] = 0
    return left


@kernel
def _add_all(postings: Postings, first: Scalar, last: Scalar, weight: Scalar, scratch: Scratch, count: int) -> int:
    """Adds a term's scores to the sum of every passage that holds it and returns the number of candidates."""
    for at in range(first, last):
        passage = postings.passages[at]
        total = scratch.total[passage]
        if total == 0:
            scratch.candidates[count] = passage
            count += 1
        scratch.total[passage] = total + weight * postings.scores[at]
    return count


@kernel
def _add_each(postings: Postings, first: Scalar, last: Scalar, weight: Scalar, scratch: Scratch, count: int) -> None:
    """Adds a term's scores to the sums of the candidates (ascending), by searching for each in its postings."""
    at = first
    for i in range(count):
        passage = scratch.candidates[i]
        step = 1
        while at + step < last and postings.passages[at + step] < passage:  # galloping search
            at += step
            step *= 2
        at += np.searchsorted(postings.passages[at : min(at + step + 1, last)], passage)
        if at == last:
            return
        if postings.passages[at] == passage:
            scratch.total[passage] += weight * postings.scores[at]


@kernel
def _score(postings: Postings, terms: Longs, weights: Floats, passage: Scalar) -> Scalar:
    """Returns the score of a passage, summed in the order of the query's terms."""
    score = np.float32(0)
    for i in range(len(terms)):
        start, end = postings.starts[terms[i]], postings.starts[terms[i] + 1]
        at = start + np.searchsorted(postings.passages[start:end], passage)
        if at < end and postings.passages[at] == passage:
            score += weights[i] * postings.scores[at]
    return score


@kernel
def search_within(postings: Postings, terms: Ragged, counts: Floats, subsets: Ragged, best: BestHits) -> None:
    """Ranks `subsets`, positions of the passages that each query may find, by looking each up in the postings.

    The other arguments are those of `search_all`.
    """
    for query in range(len(best.sizes)):
        span = slice(terms.starts[query], terms.starts[query + 1])
        scores, passages = best.scores[query], best.passages[query]
        size = 0
        for passage in subsets.values[subsets.starts[query] : subsets.starts[query + 1]]:
            score = _score(postings, terms.values[span], counts[span], passage)
            if score > 0:
                size = _offer(scores, passages, size, score, passage)
        _sort(scores, passages, size)
        best.sizes[query] = size
