"""Where a search is in the posting list of each of its terms, and how it reads them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from searchgym.retrieval.bm25.blocks import (
    BLOCK,
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
    seek,
    uncounted,
)

MANY: Final = 3
"""Number of occurrences that stands for itself and more in a row; see `Scorer.rows`."""
COUNTS: Final = 8
"""Number of occurrences up to which `Scorer.shares` reaches."""


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


@kernel
def first_cursors(postings: Postings, terms: Longs) -> Cursors:
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
def set_bounds(postings: Postings, terms: Longs, repeats: Floats, cursors: Cursors, window: int, stop: int) -> Scalar:
    """Moves the cursors to a window, sets bounds and order of the terms in it, and returns the sum of the bounds."""
    last, maxima, starts = postings.last, postings.maxima, postings.starts
    blocks, ends, bound, order = cursors.block, cursors.end, cursors.bound, cursors.order
    total = np.float32(0)
    for i in range(len(terms)):
        block: Scalar = seek(last, blocks[i], ends[i], window)
        largest: Scalar = np.float32(0)
        blocks[i] = block
        while block < ends[i] and begins_before(last, starts[terms[i]], block, stop):
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
def begins_before(last: Ints, first: Scalar, block: Scalar, stop: int) -> bool:
    """Returns whether a block of a term, whose first block is given, can contain passages before `stop`."""
    return bool(block == first or last[block - 1] + 1 < stop)


@uncounted
def open_in(postings: Postings, term: Scalar, cursors: Cursors, i: Scalar, block: Scalar) -> None:
    """Decodes a block, unless it is the one that is decoded."""
    if cursors.opened[i] != block:
        cursors.size[i] = open_block(postings, term, block, cursors.passages[i], cursors.counts[i])
        cursors.opened[i], cursors.at[i] = block, 0


@uncounted
def part_of(shares: Floats, penalties: Doubles, weight: Scalar, count: Scalar, length: Scalar) -> Scalar:
    """Returns the score of a posting, rounded differently than `score_of`, by a table where it reaches."""
    if count <= COUNTS:
        return weight * shares[U((count - 1) * len(penalties) + length)]
    return weight * np.float32(count / (count + penalties[U(length)]))


@uncounted
def in_row(row: Words, passage: Scalar) -> Scalar:
    """Returns the number of occurrences of a term with a row in a passage, up to `MANY`."""
    return np.int64((row[U(passage >> 5)] >> U((passage & 31) * 2)) & U(MANY))


@uncounted
def in_blocks(postings: Postings, term: Scalar, cursors: Cursors, i: Scalar, passage: Scalar) -> Scalar:
    """Returns the number of occurrences of a term in a passage of the window or after it."""
    block = seek(postings.last, cursors.block[i], cursors.end[i], passage)
    if block == cursors.end[i]:
        return 0
    open_in(postings, term, cursors, i, block)
    cursors.at[i] = 0
    at = find(cursors.passages[i], 0, cursors.size[i], passage)
    return np.int64(cursors.counts[i, at]) if cursors.passages[i, at] == passage else 0


@kernel
def fill_row(postings: Postings, term: Scalar, row: Words) -> None:
    """Writes the row of a term, which must be zero; see `Scorer.rows`."""
    passages, counts = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for block in range(postings.starts[term], postings.starts[term + 1]):
        for at in range(open_block(postings, term, block, passages, counts)):
            passage = passages[at]
            row[U(passage >> 5)] |= U(min(counts[at], MANY)) << U((passage & 31) * 2)
