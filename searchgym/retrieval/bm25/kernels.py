"""Compiled functions of BM25 search, which add up scores over blocks of postings."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from searchgym.retrieval.bm25.blocks import (
    RANK,
    Floats,
    Ints,
    Longs,
    Postings,
    Scalar,
    U,
    kernel,
    score_of,
    seek,
    uncounted,
)
from searchgym.retrieval.bm25.cursors import (
    MANY,
    Cursors,
    Scorer,
    begins_before,
    first_cursors,
    in_blocks,
    in_row,
    open_in,
    part_of,
    set_bounds,
)
from searchgym.retrieval.bm25.heap import BestHits, Ragged, offer, sort_hits

WINDOW: Final = 65_536
"""Number of passages whose sums are computed together: they fit into a core's cache."""
FEW: Final = 24
"""Number of candidates up to which each is looked up in a posting list, instead of visiting the list."""


class Scratch(NamedTuple):
    """Working memory of one search; only one search may use it at a time."""

    total: Floats
    """(WINDOW,) float32 sums of scores by passage of the window; all zero before and after a window."""
    candidates: Ints
    """(WINDOW,) int32 passages of the window, relative to its first, whose sum is above 0."""


@kernel
def search_all(
    postings: Postings,
    scorer: Scorer,
    terms: Ragged,
    repeats: Floats,
    scratch: Scratch,
    best: BestHits,
    first: int,
    last: int,
) -> None:
    """Ranks all passages for the queries ``first`` to ``last - 1``.

    Passages are processed in windows. In each, the terms whose bounds together cannot reach the k-th best score so far
    add no candidates (MaxScore, Turtle and Flood 1995, with bounds of blocks as in Ding and Suel 2011): the others'
    postings are added up, and the remaining terms are looked up for the candidates that can still reach it. The scores
    of the best are then computed again in the order of the query's terms, so that the hits are bit by bit those of
    visiting every posting.

    Args:
        postings: The index.
        scorer: Penalties and rows.
        terms: Term ids of each query, without repeats.
        repeats: (T,) float32 number of occurrences of each of these terms in its query.
        scratch: Working memory of this thread.
        best: Arrays that receive the hits.
        first: First query to process.
        last: Query before which to stop.
    """
    for query in range(first, last):
        start, end = terms.starts[query], terms.starts[query + 1]
        ids, counts = terms.values[start:end], repeats[start:end]
        best.sizes[query] = _search(postings, scorer, ids, counts, scratch, best.scores[query], best.passages[query])


@kernel
def _search(
    postings: Postings, scorer: Scorer, terms: Longs, repeats: Floats, scratch: Scratch, scores: Floats, passages: Ints
) -> int:
    """Ranks all passages for one query and returns the number of hits."""
    slack = _slack(len(terms))
    floor, size = np.float32(0), 0
    if len(scores) <= RANK:
        for i in range(len(terms)):
            floor = max(floor, repeats[i] * postings.floors[terms[i]] / slack)
    cursors = first_cursors(postings, terms)
    for window in range(0, len(postings.lengths), WINDOW):
        stop = min(window + WINDOW, len(postings.lengths))
        if set_bounds(postings, terms, repeats, cursors, window, stop) * slack <= floor:
            continue
        optional, rest = 0, np.float32(0)  # number of terms that add no candidates, and their bounds together
        while optional < len(terms) and (rest + cursors.bound[cursors.order[optional]]) * slack <= floor:
            rest += cursors.bound[cursors.order[optional]]
            optional += 1
        count = 0
        for j in range(len(terms) - 1, optional - 1, -1):
            i = cursors.order[j]
            count = _visit(postings, scorer, terms[i], repeats[i], cursors, i, window, stop, scratch, count, True)
        count = _keep(scratch, count, floor - rest * slack)
        count = _add_optional(postings, scorer, terms, repeats, cursors, window, stop, scratch, count, optional, floor)
        for j in range(count):
            total = scratch.total[scratch.candidates[j]]
            scratch.total[scratch.candidates[j]] = 0
            if total * slack > floor:
                passage = window + scratch.candidates[j]
                score = _score(postings, scorer, terms, repeats, cursors, passage)
                size = offer(scores, passages, size, score, passage)
                if size == len(scores):
                    floor = max(floor, scores[0] / slack)
    sort_hits(scores, passages, size)
    return size


@uncounted
def _slack(terms: int) -> Scalar:
    """Returns 1 plus a bound of the relative rounding error of sums of `terms` numbers, against exact scores."""
    return np.float32(1 + 4.8e-7 * (terms + 8))


@uncounted
def _add_optional(
    postings: Postings,
    scorer: Scorer,
    terms: Longs,
    repeats: Floats,
    cursors: Cursors,
    window: int,
    stop: int,
    scratch: Scratch,
    count: int,
    optional: int,
    floor: Scalar,
) -> int:
    """Adds the scores of the `optional` terms with the smallest bounds, and returns the number of candidates left.

    Candidates are dropped after each term, once the terms before it in the order cannot lift them to `floor`.
    """
    slack = _slack(len(terms))
    for j in range(optional - 1, -1, -1):
        i = cursors.order[j]
        if count == 0 or cursors.bound[i] == 0:
            break
        rest = np.float32(0)
        for other in range(j):
            rest += cursors.bound[cursors.order[other]]
        if scorer.row_of[terms[i]] >= 0:
            _look_up_row(postings, scorer, terms[i], repeats[i], cursors, i, window, scratch, count)
        elif count > FEW:
            _visit(postings, scorer, terms[i], repeats[i], cursors, i, window, stop, scratch, count, False)
        else:
            least = floor / slack - rest
            _look_up(postings, scorer, terms[i], repeats[i], cursors, i, window, scratch, count, least)
        count = _keep(scratch, count, floor - rest * slack)
    return count


@uncounted
def _visit(
    postings: Postings,
    scorer: Scorer,
    term: Scalar,
    repeats: Scalar,
    cursors: Cursors,
    i: Scalar,
    window: int,
    stop: int,
    scratch: Scratch,
    count: int,
    adds: bool,
) -> int:
    """Adds a term's scores to the sums of a window; with `adds`, also of passages that are no candidates yet.

    Returns:
        The number of candidates.
    """
    weight, block = np.float32(repeats * np.float32(postings.weights[term])), cursors.block[i]
    last, first, end = postings.last, postings.starts[term], cursors.end[i]
    lengths, shares, penalties = postings.lengths, scorer.shares, scorer.penalties
    total, candidates, passages, counts = scratch.total, scratch.candidates, cursors.passages[i], cursors.counts[i]
    while block < end and begins_before(last, first, block, stop):
        open_in(postings, term, cursors, i, block)
        at, size = cursors.at[i], cursors.size[i]
        while at < size and passages[U(at)] < window:
            at += 1
        while at < size:
            passage = passages[U(at)]
            if passage >= stop:
                break
            offset = U(passage - window)
            before = total[offset]
            if before > 0:
                total[offset] = before + part_of(shares, penalties, weight, counts[U(at)], lengths[U(passage)])
            elif adds:
                candidates[U(count)] = passage - window
                count += 1
                total[offset] = part_of(shares, penalties, weight, counts[U(at)], lengths[U(passage)])
            at += 1
        cursors.at[i] = at
        block += 1
    return count


@uncounted
def _keep(scratch: Scratch, count: int, least: Scalar) -> int:
    """Drops the candidates whose sum is not above `least`, keeping the order, and returns the number left."""
    left, total, candidates = 0, scratch.total, scratch.candidates
    for j in range(count):
        offset = candidates[U(j)]
        if total[U(offset)] > least:
            candidates[U(left)] = offset
            left += 1
        else:
            total[U(offset)] = 0
    return left


@uncounted
def _look_up_row(
    postings: Postings,
    scorer: Scorer,
    term: Scalar,
    repeats: Scalar,
    cursors: Cursors,
    i: Scalar,
    window: int,
    scratch: Scratch,
    count: int,
) -> None:
    """Adds the scores of a term with a row to the sums of the candidates."""
    weight, row = np.float32(repeats * np.float32(postings.weights[term])), scorer.rows[scorer.row_of[term]]
    lengths, shares, penalties = postings.lengths, scorer.shares, scorer.penalties
    total, candidates = scratch.total, scratch.candidates
    for j in range(count):
        offset = candidates[U(j)]
        passage = window + offset
        occurrences = in_row(row, passage)
        if occurrences == MANY:
            occurrences = in_blocks(postings, term, cursors, i, passage)
        if occurrences > 0:
            total[U(offset)] += part_of(shares, penalties, weight, occurrences, lengths[U(passage)])


@uncounted
def _look_up(
    postings: Postings,
    scorer: Scorer,
    term: Scalar,
    repeats: Scalar,
    cursors: Cursors,
    i: Scalar,
    window: int,
    scratch: Scratch,
    count: int,
    least: Scalar,
) -> None:
    """Adds a term's scores to the sums of the candidates that its blocks can lift above `least`."""
    weight = np.float32(repeats * np.float32(postings.weights[term]))
    for j in range(count):
        offset = scratch.candidates[j]
        block = seek(postings.last, cursors.block[i], cursors.end[i], window + offset)
        if block < cursors.end[i] and scratch.total[offset] + repeats * postings.maxima[block] > least:
            occurrences = in_blocks(postings, term, cursors, i, window + offset)
            if occurrences > 0:
                length = postings.lengths[window + offset]
                scratch.total[offset] += part_of(scorer.shares, scorer.penalties, weight, occurrences, length)


@uncounted
def _score(
    postings: Postings, scorer: Scorer, terms: Longs, repeats: Floats, cursors: Cursors, passage: Scalar
) -> Scalar:
    """Returns the exact score of a passage, summed in the order of the query's terms."""
    score, penalty = np.float32(0), scorer.penalties[postings.lengths[passage]]
    for i in range(len(terms)):
        row, count = scorer.row_of[terms[i]], MANY
        if row >= 0:
            count = in_row(scorer.rows[row], passage)
        if count == MANY:
            count = in_blocks(postings, terms[i], cursors, i, passage)
        if count > 0:
            score += repeats[i] * score_of(postings.weights[terms[i]], count, penalty)
    return score


@kernel
def search_within(
    postings: Postings, scorer: Scorer, terms: Ragged, repeats: Floats, subsets: Ragged, best: BestHits
) -> None:
    """Ranks `subsets`, ascending positions of the passages that each query may find, by looking each up.

    The other arguments are those of `search_all`.
    """
    for query in range(len(best.sizes)):
        span = slice(terms.starts[query], terms.starts[query + 1])
        scores, passages = best.scores[query], best.passages[query]
        size, cursors = 0, first_cursors(postings, terms.values[span])
        for passage in subsets.values[subsets.starts[query] : subsets.starts[query + 1]]:
            score = _score(postings, scorer, terms.values[span], repeats[span], cursors, passage)
            if score > 0:
                size = offer(scores, passages, size, score, passage)
        sort_hits(scores, passages, size)
        best.sizes[query] = size
