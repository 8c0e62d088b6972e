"""Files of vectors: FAISS's own, built from vectors on disk without holding all of them in memory.

Vectors are kept in FAISS's file of a flat index, which is a header and then the numbers (FAISS, impl/index_write.cpp):
written at a passage's place, so that an interrupted build goes on, and a flat index once the header says how many.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from searchgym.corpora.retrieval.backends import Progress
from searchgym.corpora.retrieval.cards import DenseCard
from searchgym.errors import IndexMismatchError, RunExistsError, UsageError

if TYPE_CHECKING:
    import faiss as faiss_types

try:
    import faiss
except ImportError as error:  # pragma: no cover: tests need it
    raise UsageError(f"dense retrieval needs FAISS ({error}): pip install 'searchgym[dense]'") from error

Floats = npt.NDArray[np.float32]

_FAISS: Any = faiss  # with the names that its stubs lack
KINDS: Final = {b"IxFI": "flat", b"IwSq": "ivf-sq8", b"IHNf": "hnsw"}
"""What FAISS's files begin with."""
# How FAISS (1.15) reads each. It maps flat indexes by the newer way only, inverted lists by both, but looks whether the
# file is long enough by the older one only; mapping a graph that was cut ends the process.
_FLAGS: Final = {"flat": faiss.IO_FLAG_MMAP_IFC, "ivf-sq8": faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY, "hnsw": 0}

CHUNK: Final = 16_384
"""Vectors in memory at once."""
PER_LIST: Final = 64
"""Vectors that a list is trained on; FAISS asks for 39 to 256."""
LEAST_PER_LIST: Final = 39
SEED: Final = 1234
"""Of the sample that lists are trained on, and of training."""

_HEADER: Final = struct.Struct("<4siqqq?i")
_SIZE: Final = struct.Struct("<Q")
_RESERVED: Final = 1 << 20  # what FAISS writes into two fields that it does not use
START: Final = _HEADER.size + _SIZE.size
"""Byte of a flat index's first vector."""


class Described(NamedTuple):
    """What a FAISS file says it is."""

    kind: str
    """``flat``, ``ivf-sq8`` or ``hnsw``."""
    dimension: int
    vectors: int


def describe(path: Path) -> Described:
    """Reads the beginning of a FAISS file, without FAISS.

    Raises:
        IndexMismatchError: It is none, of a kind that is not used here, or not of inner products; or a flat index that
            is longer or shorter than it says.
    """
    with path.open("rb") as file:
        start = file.read(START)
        size = os.fstat(file.fileno()).st_size
    kind = KINDS.get(start[:4])
    if kind is None or len(start) < START:
        known = ", ".join(f"{code.decode()} ({name})" for code, name in KINDS.items())
        raise IndexMismatchError(
            f"{path.name} is no FAISS index that can be used: begins with {start[:4]!r}, not {known}"
        )
    _, dimension, vectors, _, _, trained, metric = _HEADER.unpack_from(start)
    if metric != faiss.METRIC_INNER_PRODUCT:
        raise IndexMismatchError(f"{path.name} is not of inner products: FAISS's metric {metric}")
    if dimension < 1 or vectors < 1 or not trained:
        raise IndexMismatchError(f"{path.name} is empty or damaged: {vectors} vectors of dimension {dimension}")
    if kind == "flat" and size != START + 4 * vectors * dimension:
        raise IndexMismatchError(
            f"{path.name} was cut or altered: {vectors} vectors of dimension {dimension} take "
            f"{START + 4 * vectors * dimension} bytes, it has {size}"
        )
    if kind == "flat" and start != flat_header(vectors, dimension):
        raise IndexMismatchError(f"{path.name} is damaged: its header contradicts itself")
    return Described(kind, dimension, vectors)


def flat_header(vectors: int, dimension: int) -> bytes:
    """Returns what FAISS writes before the numbers of a flat index of inner products."""
    header = _HEADER.pack(b"IxFI", dimension, vectors, _RESERVED, _RESERVED, True, faiss.METRIC_INNER_PRODUCT)
    return header + _SIZE.pack(vectors * dimension)


def open_index(path: Path) -> faiss_types.Index:
    """Opens a FAISS file: ``flat`` and ``ivf-sq8`` memory-mapped, ``hnsw`` read into memory.

    Raises:
        IndexMismatchError: As `describe`; or FAISS cannot read it.
    """
    kind = describe(path).kind
    try:
        return faiss.read_index(str(path), _FLAGS[kind])
    except (RuntimeError, MemoryError) as error:
        raise IndexMismatchError(f"{path.name} cannot be read by FAISS: {error!s:.300}") from error


# -- vectors on disk -----------------------------------------------------------------------------------------------


def write_vectors(path: Path, start: int, vectors: Floats) -> None:
    """Writes vectors from a position on; what was there and behind is replaced. They are on disk afterwards.

    Args:
        path: Made if it is not there.
        start: Position of the first.
        vectors: (N, D) float32.

    Raises:
        RunExistsError: Vectors before `start` are missing.
    """
    at = START + 4 * start * vectors.shape[1]
    with path.open("r+b" if path.exists() else "w+b") as file:
        size = os.fstat(file.fileno()).st_size
        if start and size < at:
            raise _lost(path, size, at)
        os.truncate(file.fileno(), at)
        file.seek(at)
        file.write(np.ascontiguousarray(vectors, "<f4").data)
        file.flush()
        os.fsync(file.fileno())


def finish_vectors(path: Path, vectors: int, dimension: int) -> None:
    """Makes a flat index of the first so many vectors that were written.

    Raises:
        RunExistsError: There are fewer.
    """
    end = START + 4 * vectors * dimension
    size = path.stat().st_size if path.exists() else 0
    if size < end:
        raise _lost(path, size, end)
    with path.open("r+b") as file:
        os.truncate(file.fileno(), end)
        file.write(flat_header(vectors, dimension))
        file.flush()
        os.fsync(file.fileno())


def map_vectors(path: Path) -> npt.NDArray[np.float32]:
    """Returns the vectors of a flat index, (N, D) float32, memory-mapped."""
    _, dimension, vectors = describe(path)
    return np.memmap(path, "<f4", "r", START, (vectors, dimension))


def _lost(path: Path, size: int, expected: int) -> RunExistsError:
    return RunExistsError(
        f"{path} has {size} bytes of {expected}: vectors of an interrupted build were lost; build again with --restart"
    )


# -- indexes -------------------------------------------------------------------------------------------------------


def write_index(card: DenseCard, source: Path, target: Path, progress: Progress) -> dict[str, Any]:
    """Builds what a card says from a flat index.

    ``flat`` and ``ivf-sq8`` give the same bytes for the same vectors; ``hnsw`` does only on one thread, as links depend
    on which of two vectors comes first.

    Args:
        card: Of the index.
        source: A flat index with at least one vector.
        target: Gets its name when it is complete; the same file as `source` where it is the same.
        progress: Told of vectors.

    Returns:
        What is to know of it, for the manifest.
    """
    target.unlink(missing_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    facts: dict[str, Any] = {}
    if card.index == "flat":
        link(source, part)
    else:
        vectors = map_vectors(source)
        index = _ivf(card, vectors, facts) if card.index == "ivf-sq8" else _hnsw(card, vectors.shape[1])
        for done, chunk in _chunks(vectors):
            progress("adding vectors", done, len(vectors))
            index.add(chunk)
        progress("adding vectors", len(vectors), len(vectors))
        _write(index, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    return facts


def _write(index: Any, path: Path) -> None:
    """Writes an index by Python's file: FAISS's own does not say when there was no room for the last bytes."""
    with path.open("wb") as file:
        faiss.write_index(index, _FAISS.PyCallbackIOWriter(file.write))
        file.flush()
        os.fsync(file.fileno())


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, or copies it where the file system cannot do that."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOSYS):
            raise
        shutil.copyfile(source, target)


def lists_of(card: DenseCard, vectors: int) -> tuple[int, int]:
    """Returns how many lists so many vectors get, and how many vectors those are trained on.

    FAISS's guideline is 4 to 16 times the root of the vectors, each list trained on 39 to 256.
    """
    lists = card.lists or max(1, min(4 * math.isqrt(vectors), vectors // LEAST_PER_LIST))
    lists = min(lists, vectors)
    return lists, min(vectors, max(lists, card.training or PER_LIST * lists))


def _ivf(card: DenseCard, vectors: Floats, facts: dict[str, Any]) -> Any:
    """Returns trained lists without vectors."""
    dimension = vectors.shape[1]
    lists, training = lists_of(card, len(vectors))
    facts |= {"lists": lists, "training": training}
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(dimension), dimension, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = SEED
    index.cp.min_points_per_centroid = 1  # of a tiny corpus, without a warning
    index.cp.max_points_per_centroid = training  # no second sample
    chosen = np.random.default_rng(SEED).choice(len(vectors), training, replace=False, shuffle=False)
    index.train(np.array(vectors[np.sort(chosen)]))
    return index


def _hnsw(card: DenseCard, dimension: int) -> Any:
    index = faiss.IndexHNSWFlat(dimension, card.links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = card.ef_construction
    return index


def _chunks(vectors: Floats) -> Iterator[tuple[int, Floats]]:
    """Yields positions and copies of vectors; FAISS wants them where numbers begin at a multiple of four bytes."""
    for start in range(0, len(vectors), CHUNK):
        yield start, np.array(vectors[start : start + CHUNK])
