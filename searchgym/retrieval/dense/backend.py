"""The back end ``dense`` of index folders: the vectors of an encoder in a FAISS index.

index.faiss        the index, as FAISS writes it
probe.npy          (P, D) float32: vectors of up to four passages, which reveal another encoder or corpus
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from searchgym.corpora.store.reader import PassageStore, load_array
from searchgym.errors import IndexMismatchError, ModelError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval import encoders
from searchgym.retrieval.cards import Needs, Progress
from searchgym.retrieval.dense.gpu import MOST_HITS, check_gpu, copy_to_gpus
from searchgym.retrieval.dense.vectors import (
    Floats,
    describe,
    finish_vectors,
    lists_of,
    map_vectors,
    open_index,
    vectors_checksum,
    write_index,
    write_vectors,
)
from searchgym.retrieval.encoders import Encoder
from searchgym.retrieval.kinds.dense import DenseCard
from searchgym.retrieval.retriever import LocalRetriever, Passages, check_request

_FAISS: Any = faiss  # untyped, for names that the type stubs lack

INDEX: Final = "index.faiss"
"""File of the FAISS index."""
PROBE: Final = "probe.npy"
"""File of the probes: vectors of a few passages, for comparison with the encoder at each load."""
LEAST_COSINE: Final = 0.99
"""Smallest cosine between a probe and the same passage encoded again.

Half precision or another device lowers the cosine by less than 0.001; another encoder, template or passage lowers it by
more than 0.01.
"""

_ENCODER_MEMORY: Final = 2_000_000_000  # bytes: torch and a model of a hundred million parameters
_ENCODED_AT_ONCE: Final = 4096  # passages
_QUERIES_AT_ONCE: Final = 1024


def needs(card: DenseCard, passages: int, text: int) -> Needs:
    """Returns the needs of a build: disk for the vectors and an index other than ``flat``, memory for that index.

    A vector takes 4 bytes per dimension. ``ivf-sq8`` stores 1 byte per dimension and an id of 8 bytes; ``hnsw`` stores
    the whole vector and 2 * links neighbours of 4 bytes, plus a tenth for the upper layers. Memory is twice the size of
    the index, because FAISS's arrays double as they grow.
    """
    dimension, index = card.encoder.dimension, card.vector_bytes(passages)
    flat = 4 * passages * dimension
    if card.index == "flat":
        return Needs(_ENCODER_MEMORY, flat)
    lists, training = lists_of(card, max(passages, 1))
    if card.index == "ivf-sq8":
        index += 4 * lists * dimension
        return Needs(_ENCODER_MEMORY + 2 * index + 8 * training * dimension, flat + index)
    return Needs(_ENCODER_MEMORY + 2 * index, flat + index)


class DenseBuilder:
    """Builder of a dense part: encodes all shards into one file of vectors and builds the index from it at the end."""

    def __init__(self, card: DenseCard, folder: Path, shards: Path, progress: Progress) -> None:
        self._card, self._folder, self._progress = card, folder, progress
        self._vectors = shards / "vectors.faiss"
        self._flat: Path | None = None
        """Existing flat index of all vectors; None if the vectors must be written."""

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Encodes the passages of a shard and writes their vectors.

        Raises:
            ModelError: The encoder returned a number that is not finite.
        """
        encoder = encoders.load_encoder(self._card.encoder)
        batches = []
        for at in range(0, len(passages), _ENCODED_AT_ONCE):
            self._progress("encoding passages", start + at, 0)
            batches.append(encoder.encode_passages(passages[at : at + _ENCODED_AT_ONCE]))
        vectors = np.concatenate(batches)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            bad = passages[int(finite.argmin())]
            raise ModelError(
                f"encoder {self._card.encoder.name!r} gives a vector that is not finite for passage {bad.id!r}"
            )
        write_vectors(self._vectors, start, vectors)

    def checksum(self, start: int, end: int) -> int:
        """Returns the CRC-32 of a shard's vectors; 0 if there are none."""
        return vectors_checksum(self._vectors, start, end, self._card.encoder.dimension)

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Builds the index from all vectors, writes the probes, and returns the facts of the part."""
        if self._flat is None:
            finish_vectors(self._vectors, len(passages), self._card.encoder.dimension)
        source = self._flat or self._vectors
        vectors = map_vectors(source)
        positions = probe_positions(len(vectors))
        np.save(self._folder / PROBE, np.array(vectors[positions]))
        facts = {"passages": len(vectors), "dimension": vectors.shape[1], "probes": positions}
        return facts | write_index(self._card, source, self._folder / INDEX, self._progress)


builder = DenseBuilder


def load(
    card: DenseCard, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> DenseRetriever:
    """Returns a dense retriever over a part, after comparing the encoder with the probes; see `PartCard.load`.

    Raises:
        IndexMismatchError: The part does not match its facts or the passages, or the encoder returns other vectors.
        UsageError: The card's device is not available, or the encoder cannot be used; see `Encoder`.
        DataMissingError: The encoder's model cannot be loaded.
    """
    check_gpu(card)
    try:
        actual = describe(folder / INDEX)
        probes = load_array(folder / PROBE, mapped=False)
        positions, expected = list(facts["probes"]), (card.index, int(facts["dimension"]), int(facts["passages"]))
    except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise IndexMismatchError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error
    if tuple(actual) != expected or expected[1:] != (card.encoder.dimension, len(passages)):
        raise IndexMismatchError(
            f"{folder.name}/{INDEX} is {actual.kind} with {actual.vectors} vectors of {actual.dimension} numbers, "
            f"expected {card.index} with {len(passages)} of {card.encoder.dimension}"
        )
    if positions != probe_positions(len(passages)) or probes.shape != (len(positions), actual.dimension):
        raise IndexMismatchError(f"{folder.name}/{PROBE} does not belong to this index")
    index: Any = open_index(folder / INDEX)
    progress("loading the encoder", 0, 1)
    encoder = encoders.load_encoder(card.encoder)
    check_probes(encoder, [passages[position] for position in positions], probes)
    progress("loading the encoder", 1, 1)
    if card.index == "ivf-sq8":
        index.nprobe = min(card.nprobe, index.nlist)
    if card.device != "cpu":
        index = copy_to_gpus(index, card)
    return DenseRetriever(index, encoder, passages, sha256, card)


def probe_positions(passages: int) -> list[int]:
    """Returns the positions of the passages used as probes: the first, the last and two between, without repeats."""
    return sorted({0, passages // 3, 2 * passages // 3, passages - 1})


def check_probes(encoder: Encoder, passages: Sequence[Passage], vectors: Floats) -> None:
    """Checks that an encoder reproduces the vectors of some passages in an index.

    Args:
        encoder: Encoder to check.
        passages: P passages, which are encoded again.
        vectors: (P, D) float32 vectors of the index.

    Raises:
        IndexMismatchError: The cosine of some passage's two vectors is `LEAST_COSINE` or less.
    """
    again = encoder.encode_passages(passages).astype(np.float64)
    lengths = np.linalg.norm(again, axis=1) * np.linalg.norm(vectors.astype(np.float64), axis=1)
    cosines = (again * vectors).sum(axis=1) / np.maximum(lengths, 1e-30)
    for passage, cosine in zip(passages, cosines.tolist(), strict=True):
        if not cosine > LEAST_COSINE:
            raise IndexMismatchError(
                f"the encoder card {encoder.card.name!r} ({encoder.card.model}) gives another vector for passage "
                f"{passage.id!r} than the index has (cosine {cosine:.3f}): the encoder or the corpus is a different one"
            )


# -- search --------------------------------------------------------------------------------------------------------


class DenseRetriever(LocalRetriever):
    """Retriever that searches a FAISS index by inner product.

    Several threads may share it. Hits with the same score are in passage order; if not all of them are among the best
    k, ``flat`` on a CPU keeps the first; the other indexes, and all of them on a GPU, keep any. The rounding of a score
    may depend on the rest of the batch.

    Args:
        index: FAISS index of the passages' vectors, by position.
        encoder: Encoder of the queries.
        passages: The indexed passages, by position.
        corpus_sha256: `IndexManifest.corpus_sha256` of the index folder, None if there is none.
        card: Card to search by.
    """

    def __init__(
        self, index: faiss.Index, encoder: Encoder, passages: Passages, corpus_sha256: str | None, card: DenseCard
    ) -> None:
        super().__init__(passages, corpus_sha256)
        self._index, self._encoder, self._card = index, encoder, card
        on_cpu = card.device == "cpu"
        self._turn: Any = contextlib.nullcontext() if on_cpu else threading.Lock()  # on a GPU, one thread at a time

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, apart from the corpus."""
        card = self._card
        names = {"flat": (), "ivf-sq8": ("nprobe",), "hnsw": ("ef_search",)}[card.index]
        settings = {name: getattr(card, name) for name in names}
        encoder = card.encoder.vectors() | {"query": card.encoder.query, "dtype": card.encoder.dtype}
        return {"kind": "dense", "index": card.index, "encoder": encoder} | settings

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the nearest passages for each query.

        Args:
            queries: Any texts.
            k: Number of hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            At most k hits per query, best first; fewer if ``ivf-sq8`` or ``hnsw`` finds fewer.

        Raises:
            UsageError: `queries` is a single string, `k` is below 1, or above 2048 on a GPU.
        """
        check_request(queries, k)
        k = min(k, len(self._passages))
        if k > MOST_HITS and self._card.device != "cpu":
            raise UsageError(f"FAISS finds at most {MOST_HITS} hits on a GPU, got k={k}: search with device cpu")
        parameters = None
        if self._card.index == "hnsw":
            parameters = _FAISS.SearchParametersHNSW(efSearch=max(self._card.ef_search, k))
        results: list[list[Hit]] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            vectors = self._encoder.encode_queries(queries[start : start + _QUERIES_AT_ONCE])
            with self._turn:
                scores, positions = self._index.search(vectors, k, params=parameters)
            order = np.lexsort((positions, -scores), axis=1)
            scores, positions = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
            valid = positions >= 0  # FAISS pads with position -1 if it finds fewer than k
            results += self._hits_at(
                [row[keep].tolist() for row, keep in zip(positions, valid, strict=True)],
                [row[keep].tolist() for row, keep in zip(scores, valid, strict=True)],
            )
        return results
