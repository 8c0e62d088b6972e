"""Builds a BM25 index in bounded memory, from shards of postings that are merged at the end.

A shard holds the postings of some passages, grouped by term. The merge first counts in how many passages each term
occurs, then concatenates each term's postings of all shards and computes their scores as Lucene does. So the index does
not depend on how the passages were cut into shards. (Lucene leaves passages without a word out of the number of
passages and their mean length; here, as in bm25s, they count.) The `index` function of bm25s is not used because it
holds the tokens of all passages in memory, some 60 GB for the 21 million of Wikipedia.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import bm25s
import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError, UsageError
from searchgym.retrieval.bm25.analysis import analyse, terms_since
from searchgym.retrieval.bm25.kernels import Floats, Ints, Longs, Postings, kernel

K1: Final = 0.9
"""Default saturation of term frequency, as in pyserini."""
B: Final = 0.4
"""Default strength of length normalisation, as in pyserini."""
DATA: Final = "data.csc.index.npy"
"""File of scores, (P,) float32; see `Postings.scores`."""
INDICES: Final = "indices.csc.index.npy"
"""File of passage positions, (P,) int32; see `Postings.passages`."""
STARTS: Final = "indptr.csc.index.npy"
"""File of the offsets of each term's postings, (V + 1,) int64; see `Postings.starts`."""
MAXIMA: Final = "maxima.npy"
"""File of the largest score of each term, (V,) float32; bm25s does not have it."""

Make = Callable[[str, int, npt.DTypeLike], npt.NDArray[Any]]
"""Function (name, length, dtype) that returns an empty array, in memory or in a file of this name."""


_ARRAYS: Final = ("starts", "passages", "counts", "lengths", "since")


class Shard(NamedTuple):
    """P postings of D passages with T different terms; those of term t are at ``starts[t] : starts[t + 1]``."""

    terms: Sequence[str]
    """The T terms, in the order of their first occurrence."""
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


def make_shard(texts: Iterable[str]) -> Shard:
    """Returns the shard of some passages, given as one text each."""
    term_ids: dict[str, int] = {}
    terms, lengths, since = array("i"), array("i"), array("i")
    for text in texts:
        analysed = analyse(text)
        terms.extend([term_ids.setdefault(term, len(term_ids)) for term in analysed])
        lengths.append(len(analysed))
        since.append(terms_since(text))
    sizes = np.array(lengths, np.int32)
    keys = np.frombuffer(terms, np.int32).astype(np.int64) if terms else np.zeros(0, np.int64)
    # One number per occurrence, (term, passage) in its two halves: sorting and counting them gives the postings.
    keys = (keys << 32) | np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    pairs, counts = np.unique(keys, return_counts=True)
    starts = np.searchsorted(pairs >> 32, np.arange(len(term_ids) + 1))
    return Shard(
        list(term_ids),
        starts.astype(np.int64),
        (pairs & 0xFFFFFFFF).astype(np.int32),
        counts.astype(np.int32),
        sizes,
        np.array(since, np.int32),
    )


def save_shard(shard: Shard, folder: Path, number: int) -> None:
    """Writes the files of a shard, replacing those of an earlier shard with the same number."""
    for name in _ARRAYS:
        np.save(folder / f"{number:05d}.{name}.npy", getattr(shard, name))
    (folder / f"{number:05d}.terms.json").write_text(json.dumps(shard.terms), encoding="ascii")


def load_shard(folder: Path, number: int) -> Shard:
    """Returns a shard that `save_shard` wrote, with memory-mapped arrays."""
    arrays = [np.load(folder / f"{number:05d}.{name}.npy", mmap_mode="r") for name in _ARRAYS]
    return Shard(json.loads((folder / f"{number:05d}.terms.json").read_text(encoding="ascii")), *arrays)


def merge(shards: int, load: Callable[[int], Shard], k1: float, b: float, make: Make) -> bm25s.BM25:
    """Returns the index made of shards, each of which is read twice, one at a time.

    Args:
        shards: Number of shards.
        load: Returns the shard with a number, from 0.
        k1: Saturation of term frequency, at least 0, usually 0.9 to 2.
        b: Strength of length normalisation, from 0 (none) to 1 (full).
        make: Allocates the arrays of the index.

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is no passage, or no passage holds a word.
    """
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise UsageError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}")
    vocabulary: dict[str, int] = {}
    frequencies, passages, words, since = np.zeros(0, np.int64), 0, 0, 1
    for number in range(shards):
        shard = load(number)
        ids = _ids(shard.terms, vocabulary)
        frequencies = np.concatenate([frequencies, np.zeros(len(vocabulary) - len(frequencies), np.int64)])
        frequencies[ids] += np.diff(shard.starts)
        passages += len(shard.lengths)
        words += int(shard.lengths.sum(dtype=np.int64))
        since = max(since, int(shard.since.max(initial=1)))
    if not vocabulary:
        raise DataError(f"nothing to index: {passages} passages and no word in them")
    starts = make(STARTS, len(vocabulary) + 1, np.int64)
    starts[0] = 0
    np.cumsum(frequencies, out=starts[1:])
    data, indices = make(DATA, int(starts[-1]), np.float32), make(INDICES, int(starts[-1]), np.int32)
    maxima = make(MAXIMA, len(vocabulary), np.float32)
    maxima[:] = 0
    weights = np.log(1 + (passages - frequencies + 0.5) / (frequencies + 0.5))
    fill, first = np.array(starts[:-1]), 0
    for number in range(shards):
        shard = load(number)
        penalties = k1 * (1 - b + b * (shard.lengths / max(words / passages, 1e-9)))
        _lay(shard[1:4], penalties, _ids(shard.terms, vocabulary), weights, fill, first, data, indices, maxima)
        first += len(shard.lengths)
        for values in (data, indices):
            if isinstance(values, np.memmap):
                values.flush()
    return as_model(k1, b, vocabulary, passages, Postings(data, indices, starts, maxima), since)


def build_model(texts: Iterable[str], k1: float = K1, b: float = B) -> bm25s.BM25:
    """Returns the index of texts, one per passage, in memory; arguments and errors are those of `merge`."""
    shard = make_shard(texts)
    return merge(1, lambda _: shard, k1, b, lambda _, length, dtype: np.empty(length, dtype))


def as_model(
    k1: float, b: float, vocabulary: dict[str, int], passages: int, postings: Postings, since: int
) -> bm25s.BM25:
    """Returns an index as a `bm25s.BM25` object, whose `save` and `get_scores` work.

    Its ``scores["terms_since"]`` is the version of the analyser since which the corpus has these terms.
    """
    model = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy", csc_backend="numpy")
    arrays = dict(zip(("data", "indices", "indptr", "maxima"), postings, strict=True))
    model.scores = arrays | {"num_docs": passages, "terms_since": since}
    model.vocab_dict = vocabulary
    model.nonoccurrence_array = None
    model.unique_token_ids_set = set()
    return model


def _ids(terms: Sequence[str], vocabulary: dict[str, int]) -> Longs:
    """Returns the ids of terms in the vocabulary, (T,) int64, and adds new terms to it."""
    return np.array([vocabulary.setdefault(term, len(vocabulary)) for term in terms], np.int64)


@kernel
def _lay(
    shard: tuple[Longs, Ints, Ints],
    penalties: npt.NDArray[np.float64],
    terms: Longs,
    weights: npt.NDArray[np.float64],
    fill: Longs,
    first: int,
    data: Floats,
    indices: Ints,
    maxima: Floats,
) -> None:
    """Appends a shard's postings to those of the earlier shards, with their scores.

    Args:
        shard: `Shard.starts`, `Shard.passages` and `Shard.counts`.
        penalties: Length term of BM25's denominator for each passage of the shard.
        terms: Ids of the shard's terms in the vocabulary.
        weights: Inverse document frequency of each term of the vocabulary.
        fill: Next free position of each term in `data`; advanced here.
        first: Position of the shard's first passage in the corpus.
        data: Scores, filled here.
        indices: Passage positions, filled here.
        maxima: Largest score of each term, raised here.
    """
    starts, passages, counts = shard
    for i in range(len(terms)):
        term = terms[i]
        at = fill[term]
        for posting in range(starts[i], starts[i + 1]):
            passage, count = passages[posting], counts[posting]
            data[at] = weights[term] * (count / (count + penalties[passage]))
            maxima[term] = max(maxima[term], data[at])
            indices[at] = passage + first
            at += 1
        fill[term] = at
