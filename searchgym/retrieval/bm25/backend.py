"""The back end ``bm25`` of index folders: a part ``bm25/`` with a file for each array of `Postings`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import DataWarning, IndexMismatchError
from searchgym.records import Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.blocks import TYPES, Postings, first_bad_block
from searchgym.retrieval.bm25.build import TOGETHER, Index, build_model, merge
from searchgym.retrieval.bm25.search import BM25Retriever, contents
from searchgym.retrieval.bm25.shards import MOST_PIECES, Analyser, Shard, load_shard, save_shard
from searchgym.retrieval.cards import Needs, Progress
from searchgym.retrieval.kinds.bm25 import BM25Card

PARAMETERS: Final = "parameters.json"
"""File of k1, b and `Index.since`."""
VOCABULARY: Final = "vocabulary.json"
"""File of the terms, a list in the order of their ids."""
OLD: Final = "data.csc.index.npy"
"""File that an index of version 0.1.0 has: scores in the format of bm25s."""
BYTES_PER_POSTING: Final = 9.0
"""Bytes of text per posting, as measured on English text, for estimates of an index's size."""


def needs(card: BM25Card, passages: int, text: int) -> Needs:
    """Returns the needs of a build: disk for shards and index, memory for the vocabulary and postings being merged."""
    postings = text / BYTES_PER_POSTING
    words = 60 * passages**0.75  # number of distinct words by Heaps' law
    memory = 100e6 + 250 * words + 200 * min(MOST_PIECES, 3 * words) + 8 * min(postings, TOGETHER)
    return Needs(int(memory), int(16 * postings + 4 * passages + 60 * words))


class Bm25Builder:
    """Builder of the BM25 part of an index folder: writes the postings of each shard and merges them at the end."""

    def __init__(self, card: BM25Card, folder: Path, shards: Path, progress: Progress) -> None:
        self._card, self._folder, self._shards, self._progress = card, folder, shards, progress
        self._analyser = Analyser()

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Writes the postings of a shard."""
        save_shard(self._analyser.shard(map(contents, passages)), self._shards, number)

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Merges the shards into the index and returns the analyser's name, version and stop words."""

        def load(number: int, terms: bool) -> Shard:
            if terms:
                self._progress("counting terms", number, shards)
            return load_shard(self._shards, number, terms)

        def done(postings: int, of: int) -> None:
            self._progress("merging postings", postings, of)

        with Files(self._folder) as files:
            terms, since = merge(shards, load, self._card.k1, self._card.b, files.add, done)
        (self._folder / VOCABULARY).write_text(json.dumps(terms, ensure_ascii=False), encoding="utf-8")
        parameters = {"k1": self._card.k1, "b": self._card.b, "terms_since": since}
        (self._folder / PARAMETERS).write_text(json.dumps(parameters), encoding="utf-8")
        return {
            "analyser": analysis.NAME,
            "analyser_version": analysis.VERSION,
            "terms_since": since,
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
    if (folder / OLD).exists():
        message = f"{folder.parent} was built by version 0.1.0, and its postings are built again at each start"
        warnings.warn(
            f"{message}: build it anew with `searchgym index build CORPUS --out ...`", DataWarning, stacklevel=1
        )
        return BM25Retriever(build_model(map(contents, passages), card.k1, card.b), passages, sha256, card.threads)
    if version != analysis.VERSION:
        raise IndexMismatchError(f"was analysed by version {version}, this version has {analysis.VERSION}")
    try:
        index = load_part(folder)
    except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise IndexMismatchError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error
    if len(index.postings.lengths) != len(passages):
        raise IndexMismatchError(f"{folder.name} counts {len(index.postings.lengths)} passages, not {len(passages)}")
    return BM25Retriever(index, passages, sha256, card.threads)


# -- files ---------------------------------------------------------------------------------------------------------


class Files:
    """Writes the arrays of an index to one file each, in parts.

    Args:
        folder: An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, BinaryIO] = {name: path_of(folder, name).open("wb") for name in TYPES}

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, name: str, values: npt.NDArray[Any]) -> None:
        """Appends numbers to an array."""
        self._files[name].write(values.astype(TYPES[name]).tobytes())


def path_of(folder: Path, name: str) -> Path:
    """Returns the path of an array of `Postings`: its numbers one after the other, little-endian."""
    return folder / f"{name}.bin"


def load_part(folder: Path) -> Index:
    """Returns the memory-mapped index that `Bm25Builder` wrote.

    Raises:
        OSError, ValueError, LookupError: A file is missing or damaged; the message names the problem.
    """
    parameters = json.loads((folder / PARAMETERS).read_bytes())
    terms = json.loads((folder / VOCABULARY).read_bytes())
    k1, b, since = parameters["k1"], parameters["b"], parameters["terms_since"]
    if not all(type(value) in (int, float) for value in (k1, b)) or since not in (1, 2):
        raise ValueError(f"{PARAMETERS}: {parameters}")
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise ValueError(f"{VOCABULARY} is not a list of words")
    vocabulary = {term: id for id, term in enumerate(terms)}
    if len(vocabulary) != len(terms):
        raise ValueError(f"{VOCABULARY} has a word twice")
    postings = Postings(*(_mapped(path_of(folder, name), kind) for name, kind in TYPES.items()))
    index = Index(postings, vocabulary, float(k1), float(b), since)
    _check(index)
    return index


def _mapped(path: Path, kind: str) -> npt.NDArray[Any]:
    """Returns the numbers of a file, memory-mapped."""
    size, width = path.stat().st_size, np.dtype(kind).itemsize
    if size % width:
        raise ValueError(f"{path.name} has {size} bytes, which is no multiple of {width}")
    return np.memmap(path, kind, "r") if size else np.zeros(0, kind)


def _check(index: Index) -> None:
    """Checks the assumptions of the kernels, which check no bounds and would access memory beyond damaged arrays.

    Reads every posting once, as a search for every word would.

    Raises:
        ValueError: The index is damaged; the message names the problem.
    """
    p = index.postings
    blocks, terms = len(p.last), len(index.vocabulary)
    sizes = {"offsets": blocks, "widths": 2 * blocks, "maxima": blocks, "sizes": terms, "weights": terms}
    sizes |= {"floors": terms, "starts": terms + 1}
    for name, size in sizes.items():
        if len(getattr(p, name)) != size:
            raise ValueError(f"{name} has {len(getattr(p, name))} numbers, not {size}")
    if p.starts[0] != 0 or p.starts[-1] != blocks or (np.diff(p.starts) < 1).any() or not len(p.words):
        raise ValueError("the blocks of the terms do not follow each other")
    if not len(p.lengths) or (p.lengths < 0).any() or not (np.isfinite(p.weights).all() and (p.weights > 0).all()):
        raise ValueError("a length or a weight is wrong")
    block, term = first_bad_block(p, index.penalties())
    if block >= 0:
        raise ValueError(f"block {block} is wrong")
    if term >= 0:
        raise ValueError(f"term {term} is wrong")
