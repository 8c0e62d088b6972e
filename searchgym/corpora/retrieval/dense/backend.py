"""Dense retrieval as a part of an index folder: the vectors of an encoder in a FAISS index.

index.faiss        the index, as FAISS writes it
probe.npy          (P, D) float32: vectors of up to four passages, by which another encoder or corpus is told
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from searchgym.corpora.retrieval.backends import Needs, Progress
from searchgym.corpora.retrieval.bm25.search import Passages
from searchgym.corpora.retrieval.cards import DenseCard
from searchgym.corpora.retrieval.dense import encoders
from searchgym.corpora.retrieval.dense.encoders import Encoder
from searchgym.corpora.retrieval.dense.vectors import (
    Floats,
    describe,
    finish_vectors,
    lists_of,
    map_vectors,
    open_index,
    write_index,
    write_vectors,
)
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.corpora.store import PassageStore
from searchgym.errors import IndexMismatchError, ModelError, UsageError
from searchgym.records import Hit, Passage

_FAISS: Any = faiss  # with the names that its stubs lack

INDEX: Final = "index.faiss"
PROBE: Final = "probe.npy"
LEAST_COSINE: Final = 0.99
"""Of a probe and the same passage encoded again. Half precision and another device cost less than 0.001; another
encoder, template or passage costs more than 0.01."""

_ENCODER_MEMORY: Final = 2_000_000_000  # torch and a model of a hundred million numbers
_ENCODED_AT_ONCE: Final = 4096
_QUERIES_AT_ONCE: Final = 1024
_MOST_ON_GPU: Final = 2048  # hits that FAISS can select there


def needs(card: DenseCard, passages: int, text: int) -> Needs:
    """Returns what a build takes: vectors on disk, the index beside them unless flat; that index in memory.

    A vector takes 4 bytes a dimension. ``ivf-sq8`` keeps 1 byte a dimension and an id of 8, ``hnsw`` the whole vector
    and 2 * links places of 4, a tenth of them again in upper layers. FAISS's arrays double as they grow, so that memory
    is twice that.
    """
    dimension = card.encoder.dimension
    flat = 4 * passages * dimension
    if card.index == "flat":
        return Needs(_ENCODER_MEMORY, flat)
    lists, training = lists_of(card, max(passages, 1))
    if card.index == "ivf-sq8":
        index = passages * (dimension + 8) + 4 * lists * dimension
        return Needs(_ENCODER_MEMORY + 2 * index + 8 * training * dimension, flat + index)
    index = flat + int(1.1 * passages * 2 * card.links * 4)
    return Needs(_ENCODER_MEMORY + 2 * index, flat + index)


class DenseBuilder:
    """Encodes shard by shard into one file, then builds the index from it; see `parts.Builder`."""

    def __init__(self, card: DenseCard, folder: Path, shards: Path, progress: Progress) -> None:
        self._card, self._folder, self._progress = card, folder, progress
        self._vectors = shards / "vectors.faiss"

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Writes a shard's vectors.

        Raises:
            ModelError: The encoder gave a number that is not finite.
        """
        encoder = encoders.load_encoder(self._card.encoder)
        parts = []
        for at in range(0, len(passages), _ENCODED_AT_ONCE):
            self._progress("encoding passages", start + at, 0)
            parts.append(encoder.encode_passages(passages[at : at + _ENCODED_AT_ONCE]))
        vectors = np.concatenate(parts)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            bad = passages[int(finite.argmin())]
            raise ModelError(
                f"encoder {self._card.encoder.name!r} gives a vector that is not finite for passage {bad.id!r}"
            )
        write_vectors(self._vectors, start, vectors)

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Builds the index of all vectors."""
        source = self._stored(len(passages))
        vectors = map_vectors(source)
        positions = probe_positions(len(vectors))
        np.save(self._folder / PROBE, np.array(vectors[positions]))
        facts = {"passages": len(vectors), "dimension": vectors.shape[1], "probes": positions}
        return facts | write_index(self._card, source, self._folder / INDEX, self._progress)

    def _stored(self, passages: int) -> Path:
        """Returns a flat index of so many vectors."""
        finish_vectors(self._vectors, passages, self._card.encoder.dimension)
        return self._vectors


builder = DenseBuilder


def load(
    card: DenseCard, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> DenseRetriever:
    """Opens the part, memory-mapped, and its encoder; checks one by the other.

    Raises:
        IndexMismatchError: The part does not fit its facts or the passages, or the encoder gives other vectors.
        UsageError: As `Encoder`; or the card's device is not there.
        DataMissingError: As `Encoder`.
    """
    _check_device(card)
    try:
        found = describe(folder / INDEX)
        probes = np.load(folder / PROBE)
        positions, said = list(facts["probes"]), (card.index, int(facts["dimension"]), int(facts["passages"]))
    except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise IndexMismatchError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error
    if tuple(found) != said or said[1:] != (card.encoder.dimension, len(passages)):
        raise IndexMismatchError(
            f"{folder.name}/{INDEX} is {found.kind} with {found.vectors} vectors of {found.dimension} numbers, "
            f"expected {card.index} with {len(passages)} of {card.encoder.dimension}"
        )
    if positions != probe_positions(len(passages)) or probes.shape != (len(positions), found.dimension):
        raise IndexMismatchError(f"{folder.name}/{PROBE} is not of this index")
    index = open_index(folder / INDEX)
    progress("loading the encoder", 0, 1)
    encoder = encoders.load_encoder(card.encoder)
    check_probes(encoder, [passages[position] for position in positions], probes)
    progress("loading the encoder", 1, 1)
    return DenseRetriever(_placed(index, card), encoder, passages, sha256, card)


def probe_positions(passages: int) -> list[int]:
    """Returns the first, the last and two between, each once."""
    return sorted({0, passages // 3, 2 * passages // 3, passages - 1})


def check_probes(encoder: Encoder, passages: Sequence[Passage], vectors: Floats) -> None:
    """Encodes passages and compares them with the vectors that an index has of them.

    Raises:
        IndexMismatchError: One has a cosine of `LEAST_COSINE` or less.
    """
    again = encoder.encode_passages(passages).astype(np.float64)
    lengths = np.linalg.norm(again, axis=1) * np.linalg.norm(vectors.astype(np.float64), axis=1)
    cosines = (again * vectors).sum(axis=1) / np.maximum(lengths, 1e-30)
    for passage, cosine in zip(passages, cosines.tolist(), strict=True):
        if not cosine > LEAST_COSINE:
            raise IndexMismatchError(
                f"the encoder card {encoder.card.name!r} ({encoder.card.model}) gives another vector for passage "
                f"{passage.id!r} than the index has (cosine {cosine:.3f}): the encoder or the corpus is another one"
            )


# -- search --------------------------------------------------------------------------------------------------------


class DenseRetriever:
    """Searches a FAISS index by inner product. Safe to use from several threads; a copy is the retriever itself.

    Hits of the same score are in passage order. At the boundary, ``flat`` keeps the first of them, the others any. A
    score may differ by the rounding of sums with what else is in the batch.

    Args:
        index: Of the passages' vectors, by position.
        encoder: Of the queries.
        passages: The indexed passages, by position.
        corpus_sha256: `Manifest.corpus_sha256` of the index folder it comes from, None if there is none.
        card: How to search.
    """

    in_process = True  # a search cannot hang: `retrieve` need not watch it from another thread

    def __init__(
        self, index: faiss.Index, encoder: Encoder, passages: Passages, corpus_sha256: str | None, card: DenseCard
    ) -> None:
        self.corpus_sha256 = corpus_sha256
        self._index, self._encoder, self._passages, self._card = index, encoder, passages, card
        on_cpu = card.device == "cpu"
        self._turn: Any = contextlib.nullcontext() if on_cpu else threading.Lock()  # a GPU's index is for one thread

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._passages)

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        return iter(self._passages)

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, 0 to len - 1."""
        return self._passages[position]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        card = self._card
        names = {"flat": (), "ivf-sq8": ("nprobe",), "hnsw": ("ef_search",)}[card.index]
        settings = {name: getattr(card, name) for name in names}
        encoder = card.encoder.vectors() | {"query": card.encoder.query, "dtype": card.encoder.dtype}
        return {"kind": "dense", "index": card.index, "encoder": encoder} | settings

    def __deepcopy__(self, memo: dict[int, Any]) -> DenseRetriever:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the nearest passages for each query.

        Args:
            queries: Any texts.
            k: Hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            Per query at most k hits, best first; fewer where ``ivf-sq8`` or ``hnsw`` come across fewer.

        Raises:
            UsageError: `queries` is a single string, `k` is below 1, or above 2048 on a GPU.
        """
        check_request(queries, k)
        k = min(k, len(self._passages))
        if k > _MOST_ON_GPU and self._card.device != "cpu":
            raise UsageError(f"FAISS finds at most {_MOST_ON_GPU} hits on a GPU, got k={k}: search with device cpu")
        results: list[list[Hit]] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            results.extend(self._search(queries[start : start + _QUERIES_AT_ONCE], k))
        return results

    def _search(self, queries: Sequence[str], k: int) -> Iterator[list[Hit]]:
        vectors = self._encoder.encode_queries(queries)
        parameters = None
        if self._card.index == "hnsw":
            parameters = _FAISS.SearchParametersHNSW(efSearch=max(self._card.ef_search, k))
        with self._turn:
            scores, positions = self._index.search(vectors, k, params=parameters)
        order = np.lexsort((positions, -scores), axis=1)
        scores, positions = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
        for own, found in zip(scores.tolist(), positions.tolist(), strict=True):
            # FAISS fills up with -1 where it finds fewer
            yield [Hit(self._passages[p], s) for p, s in zip(found, own, strict=True) if p >= 0]


# -- devices -------------------------------------------------------------------------------------------------------


def _check_device(card: DenseCard) -> None:
    """Refuses a device that is unknown, not there, or of no use."""
    kind, _, number = card.device.partition(":")
    if card.device == "cpu":
        return
    if kind != "cuda" or not (number.isdecimal() or card.device == "cuda"):
        raise UsageError(f"device of a dense card is cpu, cuda or cuda:N, got {card.device!r}")
    if card.index == "hnsw":
        raise UsageError("FAISS searches hnsw on the CPU only: set device to cpu, or index to flat or ivf-sq8")
    if not hasattr(_FAISS, "StandardGpuResources"):
        raise UsageError(
            f"device {card.device}: the FAISS that is installed has no GPU support: pip uninstall faiss-cpu, then "
            "pip install 'searchgym[gpu]'"
        )
    there = _FAISS.get_num_gpus()
    if int(number or 0) >= there:
        raise UsageError(f"device {card.device}: FAISS finds {there} GPUs here")


def _placed(index: Any, card: DenseCard) -> Any:
    """Returns an index where the card wants it searched."""
    if card.index == "ivf-sq8":
        index.nprobe = card.nprobe
    if card.device == "cpu":
        return index
    options = _FAISS.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = card.shard, card.float16 and card.index == "flat"
    gpus = None if card.device == "cuda" else [int(card.device.removeprefix("cuda:"))]
    return _FAISS.index_cpu_to_gpus_list(index, options, gpus)
