"""Compiled functions of BM25 search: sums of scores over blocks of postings, and heaps of the best hits."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from searchgym.retrieval.bm25.blocks import (
    BLOCK,
    RANK,
    Doubles,
    Floats,
    Ints,
    Longs,
    Postings,
    Scalar,
    U,
    Words,
    find,
    kernel,
    open_block,
    score_of,
    seek,
    uncounted,
)

WINDOW: Final = 65_536
"""Number of passages whose sums are computed together: they fit into a core's cache."""
MANY: Final = 3
"""Number of occurrences that stands for itself and more in a row; see `Scorer.rows`."""
COUNTS: Final = 8
"""Number of occurrences up to which `Scorer.shares` reaches."""
FEW: Final = 24
"""Number of candidates up to which each is looked up in a posting list, instead of visiting the list."""


class Scorer(NamedTuple):
    """What turns postings into scores, and the rows of frequent terms."""

    penalties: Doubles
    """(L + 1,) float64 length term of BM25's denominator by length."""
    shares: Floats
    """(8 (L + 1),) float32: ``count / (count + penalty)`` for counts from 1 to 8, then by length."""
    rows: Words
    """(R, ceil(D / 32)) uint64: for each term with a row, two bits a passage, its number of occurrences up to 3."""
    row_of: Ints
    """(V,) int32 row of each term, -1 for a term without one."""


class Cursors(NamedTuple):
    """Where the search for a query with T terms is in the posting list of each term."""

    block: Longs
    """(T,) int64 first block that may reach into the window."""
    end: Longs
    """(T,) int64 block after the term's last one."""
    opened: Longs
    """(T,) int64 block that is decoded, -1 if none."""
    size: Longs
    """(T,) int64 number of postings of the decoded block."""
    at: Longs
    """(T,) int64 index in the decoded block of the first posting that may be in the window."""
    bound: Floats
    """(T,) float32 upper bound of what the term adds to a passage of the window."""
    order: Longs
    """(T,) int64 terms by ascending bound."""
    passages: Ints
    """(T, 128) int32 passages of the decoded block."""
    counts: Ints
    """(T, 128) int32 numbers of occurrences in the decoded block."""


class Scratch(NamedTuple):
    """Working memory of one search; only one search may use it at a time."""

    total: Floats
    """(WINDOW,) float32 sums of scores by passage of the window; all zero before and after a window."""
    candidates: Ints
    """(WINDOW,) int32 passages of the window, relative to its first, whose sum is above 0."""


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


@uncounted
def _sort(scores: Floats, passages: Ints, size: int) -> None:
    """Turns a heap of `size` hits into a list, best first."""
    for last in range(size - 1, 0, -1):
        score, passage = scores[last], passages[last]
        scores[last], passages[last] = scores[0], passages[0]
        _sink(scores, passages, last, score, passage)


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
    cursors = _cursors(postings, terms)
    for window in range(0, len(postings.lengths), WINDOW):
        stop = min(window + WINDOW, len(postings.lengths))
        if _set_bounds(postings, terms, repeats, cursors, window, stop) * slack <= floor:
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
                size = _offer(scores, passages, size, score, passage)
                if size == len(scores):
                    floor = max(floor, scores[0] / slack)
    _sort(scores, passages, size)
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


@kernel
def _cursors(postings: Postings, terms: Longs) -> Cursors:
    """Returns cursors before the first window."""
    none, size = np.zeros(len(terms), np.int64), (len(terms), BLOCK)
    return Cursors(
        postings.starts[terms],
        postings.starts[terms + 1],
        none - 1,
        none.copy(),
        none.copy(),
        np.zeros(len(terms), np.float32),
        np.arange(len(terms)),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
    )


@uncounted
def _set_bounds(postings: Postings, terms: Longs, repeats: Floats, cursors: Cursors, window: int, stop: int) -> Scalar:
    """Moves the cursors to a window, sets bounds and order of the terms in it, and returns the sum of the bounds."""
    last, maxima, starts = postings.last, postings.maxima, postings.starts
    blocks, ends, bound, order = cursors.block, cursors.end, cursors.bound, cursors.order
    total = np.float32(0)
    for i in range(len(terms)):
        block: Scalar = seek(last, blocks[i], ends[i], window)
        largest: Scalar = np.float32(0)
        blocks[i] = block
        while block < ends[i] and _begins_before(last, starts[terms[i]], block, stop):
            largest = max(largest, maxima[block])
            block += 1
        bound[i] = repeats[i] * largest
        total += bound[i]
    for i in range(1, len(terms)):  # insertion sort: the order changes little from window to window
        term, at = order[i], i
        while at > 0 and bound[order[at - 1]] > bound[term]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = term
    return total


@uncounted
def _begins_before(last: Ints, first: Scalar, block: Scalar, stop: int) -> bool:
    """Returns whether a block of a term, whose first block is given, can contain passages before `stop`."""
    return bool(block == first or last[block - 1] + 1 < stop)


@uncounted
def _open(postings: Postings, term: Scalar, cursors: Cursors, i: Scalar, block: Scalar) -> None:
    """Decodes a block, unless it is the one that is decoded."""
    if cursors.opened[i] != block:
        cursors.size[i] = open_block(postings, term, block, cursors.passages[i], cursors.counts[i])
        cursors.opened[i], cursors.at[i] = block, 0


@uncounted
def _part(shares: Floats, penalties: Doubles, weight: Scalar, count: Scalar, length: Scalar) -> Scalar:
    """Returns the score of a posting, rounded differently than `score_of`, by a table where it reaches."""
    if count <= COUNTS:
        return weight * shares[U((count - 1) * len(penalties) + length)]
    return weight * np.float32(count / (count + penalties[U(length)]))


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
    while block < end and _begins_before(last, first, block, stop):
        _open(postings, term, cursors, i, block)
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
                total[offset] = before + _part(shares, penalties, weight, counts[U(at)], lengths[U(passage)])
            elif adds:
                candidates[U(count)] = passage - window
                count += 1
                total[offset] = _part(shares, penalties, weight, counts[U(at)], lengths[U(passage)])
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
        occurrences = _in_row(row, passage)
        if occurrences == MANY:
            occurrences = _in_blocks(postings, term, cursors, i, passage)
        if occurrences > 0:
            total[U(offset)] += _part(shares, penalties, weight, occurrences, lengths[U(passage)])


@uncounted
def _in_row(row: Words, passage: Scalar) -> Scalar:
    """Returns the number of occurrences of a term with a row in a passage, up to `MANY`."""
    return np.int64((row[U(passage >> 5)] >> U((passage & 31) * 2)) & U(MANY))


@uncounted
def _in_blocks(postings: Postings, term: Scalar, cursors: Cursors, i: Scalar, passage: Scalar) -> Scalar:
    """Returns the number of occurrences of a term in a passage of the window or after it."""
    block = seek(postings.last, cursors.block[i], cursors.end[i], passage)
    if block == cursors.end[i]:
        return 0
    _open(postings, term, cursors, i, block)
    cursors.at[i] = 0
    at = find(cursors.passages[i], cursors.size[i], passage)
    return np.int64(cursors.counts[i, at]) if cursors.passages[i, at] == passage else 0


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
            occurrences = _in_blocks(postings, term, cursors, i, window + offset)
            if occurrences > 0:
                length = postings.lengths[window + offset]
                scratch.total[offset] += _part(scorer.shares, scorer.penalties, weight, occurrences, length)


@uncounted
def _score(
    postings: Postings, scorer: Scorer, terms: Longs, repeats: Floats, cursors: Cursors, passage: Scalar
) -> Scalar:
    """Returns the exact score of a passage, summed in the order of the query's terms."""
    score, penalty = np.float32(0), scorer.penalties[postings.lengths[passage]]
    for i in range(len(terms)):
        row, count = scorer.row_of[terms[i]], MANY
        if row >= 0:
            count = _in_row(scorer.rows[row], passage)
        if count == MANY:
            count = _in_blocks(postings, terms[i], cursors, i, passage)
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
        size, cursors = 0, _cursors(postings, terms.values[span])
        for passage in subsets.values[subsets.starts[query] : subsets.starts[query + 1]]:
            score = _score(postings, scorer, terms.values[span], repeats[span], cursors, passage)
            if score > 0:
                size = _offer(scores, passages, size, score, passage)
        _sort(scores, passages, size)
        best.sizes[query] = size


@kernel
def fill_row(postings: Postings, term: Scalar, row: Words) -> None:
    """Writes the row of a term, which must be zero; see `Scorer.rows`."""
    passages, counts = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for block in range(postings.starts[term], postings.starts[term + 1]):
        for at in range(open_block(postings, term, block, passages, counts)):
            passage = passages[at]
            row[U(passage >> 5)] |= U(min(counts[at], MANY)) << U((passage & 31) * 2)
