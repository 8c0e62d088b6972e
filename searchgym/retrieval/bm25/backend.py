"""The back end ``bm25`` of index folders, whose part ``bm25/`` holds the files that bm25s saves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import bm25s
import numpy as np
import numpy.typing as npt
from bm25s.utils import json_functions

from searchgym.corpora.store import PassageStore, load_array
from searchgym.errors import IndexMismatchError
from searchgym.records import Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.build import (
    DATA,
    INDICES,
    MAXIMA,
    STARTS,
    Shard,
    as_model,
    load_shard,
    make_shard,
    merge,
    save_shard,
)
from searchgym.retrieval.bm25.kernels import Floats, Ints, Longs, Postings, kernel
from searchgym.retrieval.bm25.search import BM25Retriever, contents
from searchgym.retrieval.cards import Needs, Progress
from searchgym.retrieval.kinds.bm25 import BM25Card

BYTES_PER_POSTING: Final = 9.0
"""Bytes of text per posting, as measured on English text, for estimates of an index's size."""


def needs(card: BM25Card, passages: int, text: int) -> Needs:
    """Returns the needs of a build: disk for shards and index, memory for the vocabulary and some arrays."""
    postings = text / BYTES_PER_POSTING
    words = 60 * passages**0.75  # number of distinct words by Heaps' law
    return Needs(int(100e6 + 250 * words), int(16 * postings + 4 * passages + 60 * words))


class Bm25Builder:
    """Builder of the BM25 part of an index folder: writes the postings of each shard and merges them at the end."""

    def __init__(self, card: BM25Card, folder: Path, shards: Path, progress: Progress) -> None:
        self._card, self._folder, self._shards, self._progress = card, folder, shards, progress

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Writes the postings of a shard."""
        save_shard(make_shard(map(contents, passages)), self._shards, number)

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Merges the shards into the index and returns the analyser's name, version and stop words."""

        def load(number: int) -> Shard:
            self._progress("merging postings", number, shards)
            return load_shard(self._shards, number)

        model = merge(shards, load, self._card.k1, self._card.b, partial(make_array, self._folder))
        save_rest(model, self._folder)
        self._progress("merging postings", shards, shards)
        return {
            "analyser": analysis.NAME,
            "analyser_version": analysis.VERSION,
            "terms_since": model.scores["terms_since"],
            "stop_words": sorted(analysis.STOP_WORDS),
        }


builder = Bm25Builder


def load(
    card: BM25Card, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> BM25Retriever:
    """Returns a retriever over the BM25 part of an index folder, memory-mapped; see `PartCard.load`."""
    version, since = facts.get("analyser_version"), facts.get("terms_since", 1)
    if facts.get("analyser") != analysis.NAME or version not in (1, analysis.VERSION) or since not in (1, 2):
        analyser = f"{facts.get('analyser')} {version}"
        raise IndexMismatchError(f"was analysed by {analyser!r}, this version has {analysis.NAME!r} {analysis.VERSION}")
    try:
        model = load_model(folder, since)
    except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise IndexMismatchError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error
    if model.scores["num_docs"] != len(passages):
        raise IndexMismatchError(f"{folder.name} counts {model.scores['num_docs']} passages, not {len(passages)}")
    if version == 1 and (other := next((t for t in model.vocab_dict if not analysis.is_kept(t)), None)) is not None:
        raise IndexMismatchError(
            f"was analysed by version 1 of {analysis.NAME!r} and holds {other!r:.80}, which version "
            f"{analysis.VERSION} writes differently"
        )
    return BM25Retriever(model, passages, sha256, card.threads)


# -- files ---------------------------------------------------------------------------------------------------------


def make_array(folder: Path, name: str, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an empty array in a memory-mapped ``.npy`` file of a folder."""
    array = np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.dtype(dtype), shape=(length,))
    with (folder / name).open("r+b") as file:  # a full disk would kill the process at a later write
        os.posix_fallocate(file.fileno(), 0, (folder / name).stat().st_size)
    return array


def save_rest(model: bm25s.BM25, folder: Path) -> None:
    """Writes the parameters and the vocabulary as `bm25s.BM25.save` does; `merge` has already written the arrays."""
    names = ("k1", "b", "delta", "method", "idf_method", "dtype", "int_dtype")
    params = {name: getattr(model, name) for name in names}
    params |= {"num_docs": model.scores["num_docs"], "version": bm25s.__version__, "backend": model.backend}
    (folder / "params.index.json").write_text(json.dumps(params, indent=4), encoding="utf-8")
    vocabulary = json_functions.dumps(model.vocab_dict, ensure_ascii=False)
    (folder / "vocab.index.json").write_text(vocabulary, encoding="utf-8")


def load_model(folder: Path, since: int) -> bm25s.BM25:
    """Returns the memory-mapped index that `merge` and `save_rest` wrote; `since` is that of `as_model`.

    The `load` of bm25s is not used because it keeps the vocabulary in memory twice.

    Raises:
        OSError, ValueError, KeyError: A file is missing or damaged.
    """
    params = json.loads((folder / "params.index.json").read_bytes())
    vocabulary = json.loads((folder / "vocab.index.json").read_bytes())
    postings = Postings(*(load_array(folder / name) for name in (DATA, INDICES, STARTS, MAXIMA)))
    _check_postings(postings, vocabulary, params["num_docs"])
    return as_model(params["k1"], params["b"], vocabulary, params["num_docs"], postings, since)


def _check_postings(postings: Postings, vocabulary: dict[str, int], passages: Any) -> None:
    """Checks the assumptions of the kernels, which check no bounds and would access memory beyond damaged arrays.

    Reads every posting once, as a search for every word would.

    Raises:
        ValueError: The postings are damaged; the message names the problem.
    """
    data, indices, starts, maxima = postings
    kinds = [(array.dtype, array.ndim) for array in postings]
    if kinds != [(np.dtype(kind), 1) for kind in (np.float32, np.int32, np.int64, np.float32)]:
        raise ValueError(f"the arrays are of types {', '.join(f'{kind} ({n}-d)' for kind, n in kinds)}")
    if not len(starts) or not (len(data) == len(indices) == starts[-1] and len(starts) - 1 == len(maxima)):
        raise ValueError(f"{len(data)} scores, {len(indices)} passages, {len(maxima)} terms: they do not fit")
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ValueError("the postings of the terms do not follow each other")
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [None]
    if len(ids) != len(maxima) or not all(type(i) is int and 0 <= i < len(maxima) for i in ids):
        raise ValueError(f"the vocabulary does not number its {len(ids)} words from 0 to {len(maxima) - 1}")
    if type(passages) is not int or not 0 <= passages < 2**31:
        raise ValueError(f"num_docs is {passages!r}")
    if not np.isfinite(maxima).all():
        raise ValueError("a largest score is not finite")
    posting, term = first_bad_postings(data, indices, starts, maxima, passages)
    if posting >= 0:
        raise ValueError(f"posting {posting} is wrong")
    if term >= 0:  # a search skips postings by the largest score of their term
        raise ValueError(f"the largest score of term {term} is not that of its postings")


@kernel
def first_bad_postings(scores: Floats, passages: Ints, starts: Longs, maxima: Floats, count: int) -> tuple[int, int]:
    """Returns the first posting that is wrong, and the first term whose largest score is wrong; -1 if none is.

    A posting is wrong if it is out of order, beyond the passages or without a positive score.

    Args:
        scores: Scores of all postings.
        passages: Passages of all postings, which ascend within a term.
        starts: (T + 1,) first posting of each term, ascending, then the number of postings.
        maxima: (T,) largest score of each term, 0 for a term without postings.
        count: Number of passages.
    """
    for term in range(len(starts) - 1):
        last, largest = -1, np.float32(0)
        for at in range(starts[term], starts[term + 1]):
            passage = passages[at]
            if passage <= last or passage >= count or not 0 < scores[at] < np.inf:
                return at, -1
            last, largest = passage, max(largest, scores[at])
        if largest != maxima[term]:
            return -1, term
    return -1, -1
