"""Postings of some passages, grouped by term: a shard of an index that is being built.

Words never go across a space, so each different piece of text between two spaces is analysed once, and a passage is the
list of its pieces.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from searchgym.retrieval.bm25.analysis import analyse, terms_since
from searchgym.retrieval.bm25.blocks import Ints, Longs, kernel

MOST_PIECES: Final = 1 << 20
"""Number of different pieces above which an analyser begins anew; each takes about 200 bytes."""
_ARRAYS: Final = ("starts", "passages", "counts", "lengths", "since")


class Shard(NamedTuple):
    """P postings of D passages with T different terms; those of term t are at ``starts[t] : starts[t + 1]``."""

    terms: Sequence[str]
    """The T terms; those that no earlier shard has are in the order of their first occurrence."""
    starts: Longs
    """(T + 1,) int64 offsets of each term's postings."""
    passages: Ints
    """(P,) int32 positions of passages in the shard, ascending within a term."""
    counts: Ints
    """(P,) int32 number of occurrences of the term in the passage."""
    lengths: Ints
    """(D,) int32 number of terms in each passage, repeats included."""
    since: Ints
    """(D,) int32 version of the analyser since which each passage has these terms."""


class Analyser:
    """Makes shards; pieces of text that an earlier shard had need not be analysed again."""

    def __init__(self) -> None:
        self._pieces = _Pieces()

    def shard(self, texts: Iterable[str]) -> Shard:
        """Returns the shard of some passages, given as one text each."""
        if len(self._pieces) > MOST_PIECES:
            self._pieces = _Pieces()
        pieces, numbers, ends = self._pieces, array("i"), array("q", [0])
        number_of = pieces.__getitem__
        for text in texts:
            numbers.extend(map(number_of, text.replace("\n", " ").split(" ")))
            ends.append(len(numbers))
        occurrences = np.array(numbers, np.int32)
        terms, bounds, since = (np.array(values, np.int32) for values in (pieces.terms, pieces.ends, pieces.since))
        sizes, passages, counts, lengths, versions = _group(
            occurrences, np.array(ends, np.int64), terms, bounds, since, len(pieces.ids)
        )
        used = np.flatnonzero(sizes)
        words = list(pieces.ids)
        starts = np.concatenate([[0], np.cumsum(sizes[used])])
        return Shard([words[id] for id in used.tolist()], starts, passages, counts, lengths, versions)


class _Pieces(dict[str, int]):
    """Number of each different piece of text; a new piece is analysed when it is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, int] = {}
        """Id of each term, in the order of their first occurrence."""
        self.terms, self.ends, self.since = array("i"), array("i", [0]), array("i")

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self)
        self.terms.extend([self.ids.setdefault(term, len(self.ids)) for term in analyse(piece)])
        self.ends.append(len(self.terms))
        self.since.append(terms_since(piece))
        return number


@kernel
def _group(
    numbers: Ints, bounds: Longs, terms: Ints, ends: Ints, since: Ints, size: int
) -> tuple[Longs, Ints, Ints, Ints, Ints]:
    """Returns the number of postings of each term, and the other arrays of a shard.

    Args:
        numbers: Pieces of the passages, one passage after the other.
        bounds: (D + 1,) where each passage begins in `numbers`, and where the last one ends.
        terms: Ids of the terms in the pieces, one piece after the other.
        ends: Where each piece begins in `terms`, and where the last one ends.
        since: Version of the analyser since which each piece has its terms.
        size: Number of terms; some may not occur.
    """
    passages = len(bounds) - 1
    sizes, last = np.zeros(size, np.int64), np.full(size, -1, np.int32)
    lengths, versions = np.zeros(passages, np.int32), np.ones(passages, np.int32)
    for passage in range(passages):
        for i in range(bounds[passage], bounds[passage + 1]):
            versions[passage] = max(versions[passage], since[numbers[i]])
            lengths[passage] += ends[numbers[i] + 1] - ends[numbers[i]]
            for at in range(ends[numbers[i]], ends[numbers[i] + 1]):
                term = terms[at]
                sizes[term] += last[term] != passage
                last[term] = passage
    fill, total = np.zeros(size, np.int64), 0
    for term in range(size):
        fill[term] = total
        total += sizes[term]
        last[term] = -1
    into, counts = np.zeros(total, np.int32), np.zeros(total, np.int32)
    for passage in range(passages):
        for i in range(bounds[passage], bounds[passage + 1]):
            for at in range(ends[numbers[i]], ends[numbers[i] + 1]):
                term = terms[at]
                if last[term] != passage:
                    into[fill[term]] = passage
                    fill[term] += 1
                    last[term] = passage
                counts[fill[term] - 1] += 1
    return sizes, into, counts, lengths, versions


def save_shard(shard: Shard, folder: Path, number: int) -> None:
    """Writes the files of a shard, replacing those of an earlier shard with the same number."""
    for name in _ARRAYS:
        np.save(folder / f"{number:05d}.{name}.npy", getattr(shard, name))
    (folder / f"{number:05d}.terms.json").write_text(json.dumps(shard.terms), encoding="ascii")


def load_shard(folder: Path, number: int, terms: bool = True) -> Shard:
    """Returns a shard that `save_shard` wrote, with memory-mapped arrays; without `terms`, those are left out."""
    arrays = [np.load(folder / f"{number:05d}.{name}.npy", mmap_mode="r") for name in _ARRAYS]
    words = json.loads((folder / f"{number:05d}.terms.json").read_text(encoding="ascii")) if terms else []
    return Shard(words, *arrays)
