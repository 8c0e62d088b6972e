"""Builds a BM25 index in bounded memory, from shards of postings that are merged at the end.

A shard holds the postings of some passages, grouped by term. The merge first counts in how many passages each term
occurs; then it collects the postings of some terms at a time from all shards, and compresses them. So the index does
not depend on how the passages were cut into shards. (Lucene leaves passages without a word out of the number of
passages and their mean length; here they count.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError, UsageError
from searchgym.retrieval.bm25.blocks import (
    BLOCK,
    TYPES,
    Doubles,
    Ints,
    Longs,
    Postings,
    Scalar,
    kernel,
    measure,
    pack,
)
from searchgym.retrieval.bm25.shards import Analyser, Shard

K1: Final = 0.9
"""Default saturation of term frequency, as in pyserini."""
B: Final = 0.4
"""Default strength of length normalisation, as in pyserini."""
TOGETHER: Final = 32_000_000
"""Number of postings that the merge collects and compresses at a time; each needs eight bytes of memory."""

Load = Callable[[int, bool], Shard]
"""Function that returns the shard with a number, from 0, with its terms or without."""
Add = Callable[[str, npt.NDArray[Any]], None]
"""Function that appends numbers to an array of `Postings`, by its name."""


@dataclass(frozen=True, slots=True)
class Index:
    """A BM25 index with its parameters."""

    postings: Postings
    """The posting lists."""
    vocabulary: dict[str, int]
    """Id of each term."""
    k1: float
    """Saturation of term frequency."""
    b: float
    """Strength of length normalisation."""
    since: int
    """Version of the analyser since which the corpus has these terms."""

    def penalties(self) -> Doubles:
        """Returns the length term of BM25's denominator by length, (L + 1,) float64; L is the largest length."""
        lengths = self.postings.lengths
        return penalties(self.k1, self.b, int(lengths.sum(dtype=np.int64)), len(lengths), int(lengths.max(initial=0)))


def penalties(k1: float, b: float, words: int, passages: int, longest: int) -> Doubles:
    """Returns the length term of BM25's denominator by length: ``k1 (1 - b + b length / mean)``, (longest + 1,)."""
    table: Doubles = k1 * (1 - b + b * (np.arange(longest + 1) / max(words / passages, 1e-9)))
    return table


def merge(
    shards: int, load: Load, k1: float, b: float, add: Add, done: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[str], int]:
    """Merges shards, each of which is read several times, a few terms at a time.

    Args:
        shards: Number of shards.
        load: Returns a shard.
        k1: Saturation of term frequency, at least 0, usually 0.9 to 2.
        b: Strength of length normalisation, from 0 (none) to 1 (full).
        add: Receives the arrays of `Postings`, in parts.
        done: Called with the number of postings that are merged, and of all.

    Returns:
        The terms in the order of their ids, and `Index.since`.

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is no passage, or no passage holds a word.
    """
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise UsageError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}")
    vocabulary: dict[str, int] = {}
    terms, lengths, since = list[Ints](), list[Ints](), 1
    frequencies = np.zeros(0, np.int64)
    for number in range(shards):
        shard = load(number, True)
        ids = np.array([vocabulary.setdefault(term, len(vocabulary)) for term in shard.terms], np.int32)
        frequencies = np.concatenate([frequencies, np.zeros(len(vocabulary) - len(frequencies), np.int64)])
        frequencies[ids] += np.diff(shard.starts)
        terms.append(ids)
        lengths.append(np.array(shard.lengths))
        since = max(since, int(shard.since.max(initial=1)))
    size = np.concatenate([np.zeros(0, np.int32), *lengths])
    if not vocabulary:
        raise DataError(f"nothing to index: {len(size)} passages and no word in them")
    weights = np.log(1 + (len(size) - frequencies + 0.5) / (frequencies + 0.5))
    table = penalties(k1, b, int(size.sum(dtype=np.int64)), len(size), int(size.max()))
    blocks = (frequencies + BLOCK - 1) // BLOCK
    for name, values in (("starts", _starts(blocks)), ("sizes", frequencies), ("weights", weights)):
        add(name, values)
    add("lengths", size)
    word = 0
    for first, end in _ranges(frequencies):
        passages, counts = _collect(terms, load, frequencies[first:end], first)
        bounds = _starts(frequencies[first:end])
        out = _arrays(int(blocks[first:end].sum()), end - first)
        words = np.zeros(measure(passages, counts, bounds, weights[first:end], size, table, out), np.uint64)
        pack(passages, counts, bounds, out.widths, words)
        for name in ("widths", "last", "maxima", "floors"):
            add(name, getattr(out, name))
        add("offsets", out.offsets + word)
        add("words", words)
        word += len(words)
        done(int(frequencies[:end].sum()), int(frequencies.sum()))
    add("words", np.zeros(1, np.uint64))
    return list(vocabulary), since


def build_model(texts: Iterable[str], k1: float = K1, b: float = B) -> Index:
    """Returns the index of texts, one per passage, in memory; arguments and errors are those of `merge`."""
    shard, parts = Analyser().shard(texts), dict[str, list[npt.NDArray[Any]]]()
    terms, since = merge(
        1, lambda *_: shard, k1, b, lambda name, part: parts.setdefault(name, []).append(part.astype(TYPES[name]))
    )
    postings = Postings(*(np.concatenate(parts[name]) for name in TYPES))
    return Index(postings, {term: id for id, term in enumerate(terms)}, k1, b, since)


def _starts(sizes: Longs) -> Longs:
    """Returns where each of some lists that follow each other begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _ranges(frequencies: Longs) -> Iterator[tuple[int, int]]:
    """Yields ranges of terms with at most `TOGETHER` postings each, or of one term."""
    totals = np.cumsum(frequencies)
    first, before = 0, 0
    while first < len(frequencies):
        end = max(first + 1, int(np.searchsorted(totals, before + TOGETHER, side="right")))
        yield first, end
        first, before = end, int(totals[end - 1])


def _arrays(blocks: int, terms: int) -> Postings:
    """Returns arrays for the results of `measure`."""
    sizes = {"offsets": blocks, "widths": 2 * blocks, "last": blocks, "maxima": blocks, "floors": terms}
    return Postings(*(np.zeros(sizes.get(name, 0), kind) for name, kind in TYPES.items()))


def _collect(terms: Sequence[Ints], load: Load, frequencies: Longs, first: int) -> tuple[Ints, Ints]:
    """Returns the passages and counts of the postings of some terms from all shards, one term after the other.

    Args:
        terms: Ids of each shard's terms.
        load: Returns a shard.
        frequencies: Number of postings of each of the terms.
        first: Id of the first of these terms.
    """
    fill = _starts(frequencies)
    passages, counts = np.empty(fill[-1], np.int32), np.empty(fill[-1], np.int32)
    start = 0
    for number, ids in enumerate(terms):
        shard = load(number, False)
        slots = np.flatnonzero((ids >= first) & (ids < first + len(frequencies)))
        _lay(shard.starts, shard.passages, shard.counts, slots, ids[slots] - first, fill, start, passages, counts)
        start += len(shard.lengths)
    return passages, counts


@kernel
def _lay(
    starts: Longs,
    passages: Ints,
    counts: Ints,
    slots: Longs,
    terms: Ints,
    fill: Longs,
    start: Scalar,
    into: Ints,
    into_counts: Ints,
) -> None:
    """Appends postings of a shard to those of the earlier shards.

    Args:
        starts: `Shard.starts`.
        passages: `Shard.passages`.
        counts: `Shard.counts`.
        slots: Indices of the terms in the shard.
        terms: Index of each of these terms in `fill`.
        fill: Next free position of each term; advanced here.
        start: Position of the shard's first passage in the corpus.
        into: Receives the passages.
        into_counts: Receives the counts.
    """
    for i in range(len(slots)):
        at = fill[terms[i]]
        for posting in range(starts[slots[i]], starts[slots[i] + 1]):
            into[at] = passages[posting] + start
            into_counts[at] = counts[posting]
            at += 1
        fill[terms[i]] = at
