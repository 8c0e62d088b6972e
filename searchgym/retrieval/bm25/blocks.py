"""Compressed posting lists: blocks of at most 128 postings, packed with as few bits as each block needs.

A posting is a passage and the number of occurrences of the term in it. Its score follows from the two, so it is not
stored; what is stored are bounds of scores, by which a search passes over blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.options import DefaultOptions

F = TypeVar("F", bound=Callable[..., Any])
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Scalar = Any  # argument of a compiled function: float32 or an integer, as numba infers

BLOCK: Final = 128
"""Maximum number of postings in a block; only the last block of a term has fewer."""
RANK: Final = 10
"""Rank of the score in `Postings.floors`: the usual number of hits of a search."""
U: Final = np.uint64
"""Type of array indices in inner loops: of a signed index numba checks whether it is negative."""


class Postings(NamedTuple):
    """The inverted index of D passages, V terms and B blocks; those of term t are ``starts[t] : starts[t + 1]``."""

    words: Words
    """(W + 1,) uint64 packed postings, and one word of padding."""
    offsets: Longs
    """(B,) int64 index in `words` at which each block begins."""
    widths: npt.NDArray[np.uint8]
    """(2 B,) uint8: for each block, the bits of a distance between passages, and those of a number of occurrences."""
    last: Ints
    """(B,) int32 position of the last passage of each block."""
    maxima: Floats
    """(B,) float32 largest score of each block."""
    starts: Longs
    """(V + 1,) int64 first block of each term, then the number of blocks."""
    sizes: Ints
    """(V,) int32 number of passages that contain each term, at least 1."""
    weights: Doubles
    """(V,) float64 inverse document frequency of each term, above 0."""
    floors: Floats
    """(V,) float32 tenth best score of each term; 0 with fewer than ten."""
    lengths: Ints
    """(D,) int32 number of terms in each passage, repeats included."""


TYPES: Final = dict(
    zip(Postings._fields, ("<u8", "<i8", "u1", "<i4", "<f4", "<i8", "<i4", "<f8", "<f4", "<i4"), strict=True)
)
"""Type of each array of `Postings`, as in its file."""


def kernel(function: F) -> F:
    """Compiles a function at its first call and caches the machine code on disk if a cache folder is writable.

    The cache notices a change of the function's file, not of other files whose functions it calls.
    """
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither the package folder nor the user's cache folder is writable
        return cast(F, numba.njit(nogil=True)(function))


def uncounted(function: F) -> F:
    """Compiles a function that creates no array, without counting references to the arrays that it reads.

    Counting costs more than the work itself where arrays are read from tuples, a few numbers at a time.
    """
    options: dict[str, Any] = {"nogil": True}
    if hasattr(DefaultOptions, "_nrt"):  # no documented option, so it may go: then the same code is slower
        options["_nrt"] = False
    return cast(F, numba.njit(**options)(function))


@uncounted
def score_of(weight: Scalar, count: Scalar, penalty: Scalar) -> Scalar:
    """Returns the score of a posting, in float32: ``weight * count / (count + penalty)``."""
    return np.float32(weight * (count / (count + penalty)))


@uncounted
def unpack(
    words: Words,
    offset: Scalar,
    bits: Scalar,
    count_bits: Scalar,
    before: Scalar,
    size: Scalar,
    into: Ints,
    counts: Ints,
) -> None:
    """Decodes a block.

    Args:
        words: `Postings.words`.
        offset: Index of the block's first word.
        bits: Bits of a posting: those of the distance and those of the count.
        count_bits: Bits of the number of occurrences, less 1.
        before: Last passage of the term's block before, -1 if there is none.
        size: Number of postings.
        into: Receives the passages.
        counts: Receives the numbers of occurrences.
    """
    width, shift = U(bits), U(count_bits)
    mask, count_mask = (U(1) << width) - U(1), (U(1) << shift) - U(1)
    at, left = U(offset), U(64)
    word = words[at]
    passage = np.int32(before)
    for i in range(size):
        if left >= width:
            value = word & mask
            word >>= width
            left -= width
        else:  # the posting begins in one word and ends in the next
            at += U(1)
            following = words[at]
            value = (word | (following << left)) & mask
            word = following >> (width - left)
            left += U(64) - width
        passage += np.int32(value >> shift) + np.int32(1)
        into[U(i)] = passage
        counts[U(i)] = np.int32(value & count_mask) + np.int32(1)


@uncounted
def open_block(postings: Postings, term: Scalar, block: Scalar, into: Ints, counts: Ints) -> Scalar:
    """Decodes a block of a term and returns its number of postings."""
    first = postings.starts[term]
    size = min(BLOCK, postings.sizes[term] - BLOCK * (block - first))
    before = postings.last[block - 1] if block > first else -1
    count_bits = np.int64(postings.widths[2 * block + 1])
    bits = np.int64(postings.widths[2 * block]) + count_bits
    unpack(postings.words, postings.offsets[block], bits, count_bits, before, size, into, counts)
    return size


@uncounted
def find(values: Ints, low: Scalar, high: Scalar, passage: Scalar) -> Scalar:
    """Returns the first index from `low` on whose value, of ascending ones, is at or after a passage; else `high`."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < passage:
            low = middle + 1
        else:
            high = middle
    return low


@uncounted
def seek(last: Ints, start: Scalar, end: Scalar, passage: Scalar) -> Scalar:
    """Returns the first block from `start` on whose last passage is at or after a passage; `end` if there is none."""
    if start >= end or last[start] >= passage:
        return start
    step = 1
    while start + step < end and last[start + step] < passage:  # galloping search
        start += step
        step *= 2
    return find(last, start + 1, min(start + step, end), passage)


@kernel
def _bits(number: Scalar) -> int:
    """Returns the number of bits of a number at or above 0."""
    bits = 0
    while number > 0:
        bits += 1
        number >>= 1
    return bits


@kernel
def raise_floor(best: Floats, score: Scalar) -> None:
    """Puts a score among the best, which are in ascending order, if it exceeds the smallest of them."""
    if score > best[0]:
        at = 0
        while at + 1 < len(best) and best[at + 1] < score:
            best[at] = best[at + 1]
            at += 1
        best[at] = score


@kernel
def measure(
    passages: Ints, counts: Ints, bounds: Longs, weights: Doubles, lengths: Ints, penalties: Doubles, out: Postings
) -> Scalar:
    """Computes the sizes and bounds of the blocks of some terms, and returns the number of words that they need.

    Args:
        passages: Passages of all postings of the terms, one term after the other, ascending within each.
        counts: Number of occurrences of each posting.
        bounds: (T + 1,) index of each term's first posting, then the number of postings.
        weights: (T,) inverse document frequency of each term.
        lengths: Length of every passage of the corpus.
        penalties: Length term of BM25's denominator by length.
        out: Receives `offsets` (from 0), `widths`, `last`, `maxima` and `floors`; its other arrays are not used.
    """
    block, best = 0, np.zeros(RANK, np.float32)
    word: Scalar = 0
    for term in range(len(bounds) - 1):
        best[:] = 0
        before = np.int32(-1)
        for start in range(bounds[term], bounds[term + 1], BLOCK):
            end = min(start + BLOCK, bounds[term + 1])
            distance, most, largest = np.int32(0), np.int32(0), np.float32(0)
            for at in range(start, end):
                score = score_of(weights[term], counts[at], penalties[lengths[passages[at]]])
                raise_floor(best, score)
                largest = max(largest, score)
                distance, most = max(distance, passages[at] - before - 1), max(most, counts[at] - 1)
                before = passages[at]
            out.widths[2 * block], out.widths[2 * block + 1] = _bits(distance), _bits(most)
            out.offsets[block], out.last[block], out.maxima[block] = word, before, largest
            word += (np.int64(end - start) * (_bits(distance) + _bits(most)) + 63) // 64
            block += 1
        out.floors[term] = best[0]
    return word


@kernel
def pack(passages: Ints, counts: Ints, bounds: Longs, widths: npt.NDArray[np.uint8], words: Words) -> None:
    """Writes the postings of some terms into zeroed words; arguments are those of `measure`."""
    block, first = 0, np.int64(0)
    for term in range(len(bounds) - 1):
        before = np.int32(-1)
        for start in range(bounds[term], bounds[term + 1], BLOCK):
            end = min(start + BLOCK, bounds[term + 1])
            count_bits = np.int64(widths[2 * block + 1])
            bits = np.int64(widths[2 * block]) + count_bits
            for at in range(start, end):
                value = (U(passages[at] - before - 1) << U(count_bits)) | U(counts[at] - 1)
                before = passages[at]
                position = (at - start) * bits
                word, shift = first + (position >> 6), position & 63
                words[word] |= value << U(shift)
                if shift + bits > 64:
                    words[word + 1] |= value >> U(64 - shift)
            first += (np.int64(end - start) * bits + 63) // 64
            block += 1


@kernel
def first_bad_block(postings: Postings, penalties: Doubles) -> tuple[int, int]:
    """Returns the first block that is wrong, and the first term that is; -1 where none is.

    A block is wrong if it reaches beyond the words or the passages, or if its last passage or largest score is not that
    of its postings; a term, if its blocks are not as many as its postings need, or if its tenth best score is wrong.
    """
    into, counts, best = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32), np.zeros(RANK, np.float32)
    for term in range(len(postings.sizes)):
        first, end = postings.starts[term], postings.starts[term + 1]
        if postings.sizes[term] < 1 or end - first != (np.int64(postings.sizes[term]) + BLOCK - 1) // BLOCK:
            return -1, term
        best[:] = 0
        for block in range(first, end):
            size = min(BLOCK, postings.sizes[term] - BLOCK * (block - first))
            bits = np.int64(postings.widths[2 * block]) + np.int64(postings.widths[2 * block + 1])
            offset = postings.offsets[block]
            if bits > 62 or offset < 0 or offset + (size * bits + 63) // 64 >= len(postings.words):
                return block, -1
            if block > first and postings.last[block - 1] >= postings.last[block]:
                return block, -1
            open_block(postings, term, block, into, counts)
            before, largest = postings.last[block - 1] if block > first else -1, np.float32(0)
            for i in range(size):
                if into[i] <= before or into[i] >= len(postings.lengths) or counts[i] < 1:
                    return block, -1
                before = into[i]
                score = score_of(postings.weights[term], counts[i], penalties[postings.lengths[into[i]]])
                raise_floor(best, score)
                largest = max(largest, score)
            if before != postings.last[block] or largest != postings.maxima[block] or not 0 < largest < np.inf:
                return block, -1
        if best[0] != postings.floors[term]:
            return -1, term
    return -1, -1
