"""Writes, reads and builds FAISS indexes from vectors on disk, without holding all vectors in memory.

Vectors are stored in the format of FAISS's flat index: a header, then the numbers (FAISS, impl/index_write.cpp). Each
vector is written at its passage's position, so that an interrupted build can be resumed; writing the header at the end
makes the file a flat index.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from searchgym.errors import IndexMismatchError, UsageError
from searchgym.packages import install_command
from searchgym.retrieval.cards import Progress
from searchgym.retrieval.kinds.dense import DenseCard

if TYPE_CHECKING:
    import faiss as faiss_types

try:
    import faiss
except ImportError as error:  # pragma: no cover: tests need it
    raise UsageError(f"dense retrieval needs FAISS ({error}): {install_command('dense')}") from error

Floats = npt.NDArray[np.float32]

_FAISS: Any = faiss  # untyped, for names that the type stubs lack
KINDS: Final = {b"IxFI": "flat", b"IwSq": "ivf-sq8", b"IHNf": "hnsw"}
"""Types of index, by the first four bytes of the FAISS file."""
# Read flags for FAISS 1.15. MMAP_IFC is the only flag that maps flat indexes. Both map inverted lists, but only MMAP
# checks that the file is long enough. A graph is read into memory: mapping a truncated file kills the process.
_FLAGS: Final = {"flat": faiss.IO_FLAG_MMAP_IFC, "ivf-sq8": faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY, "hnsw": 0}

CHUNK: Final = 16_384
"""Number of vectors in memory at once."""
PER_LIST: Final = 64
"""Default number of training vectors per inverted list; FAISS recommends 39 to 256."""
LEAST_PER_LIST: Final = 39
"""Smallest number of training vectors per inverted list that FAISS recommends."""
SEED: Final = 1234
"""Seed of the training of inverted lists and of its sample of vectors."""

_HEADER: Final = struct.Struct("<4siqqq?i")
_SIZE: Final = struct.Struct("<Q")
_RESERVED: Final = 1 << 20  # value that FAISS writes into two unused fields
START: Final = _HEADER.size + _SIZE.size
"""Byte offset of the first vector in a flat index."""


class Described(NamedTuple):
    """Description of a FAISS file, read from its header."""

    kind: str
    """Type of the index: ``flat``, ``ivf-sq8`` or ``hnsw``."""
    dimension: int
    """Numbers per vector."""
    vectors: int
    """Number of vectors."""


def describe(path: Path) -> Described:
    """Returns the description of a FAISS file, read from its header without loading the index.

    Raises:
        IndexMismatchError: The file is not a FAISS index, or an index of an unsupported type or metric; or it is a flat
            index whose length does not match its header.
    """
    with path.open("rb") as file:
        start = file.read(START)
        size = os.fstat(file.fileno()).st_size
    kind = KINDS.get(start[:4])
    if kind is None or len(start) < START:
        supported = ", ".join(f"{code.decode()} ({name})" for code, name in KINDS.items())
        raise IndexMismatchError(
            f"{path.name} is not a supported FAISS index: it begins with {start[:4]!r}, not {supported}"
        )
    _, dimension, vectors, _, _, trained, metric = _HEADER.unpack_from(start)
    if metric != faiss.METRIC_INNER_PRODUCT:
        raise IndexMismatchError(f"{path.name} does not use inner products: FAISS's metric {metric}")
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
    """Returns the header that FAISS writes before the numbers of a flat index of inner products."""
    header = _HEADER.pack(b"IxFI", dimension, vectors, _RESERVED, _RESERVED, True, faiss.METRIC_INNER_PRODUCT)
    return header + _SIZE.pack(vectors * dimension)


def open_index(path: Path) -> faiss_types.Index:
    """Returns the index in a FAISS file: ``flat`` and ``ivf-sq8`` memory-mapped, ``hnsw`` read into memory.

    Raises:
        IndexMismatchError: The file is not a supported index (see `describe`), or FAISS cannot read it.
    """
    kind = describe(path).kind
    try:
        return faiss.read_index(str(path), _FLAGS[kind])
    except (RuntimeError, MemoryError) as error:
        raise IndexMismatchError(f"{path.name} cannot be read by FAISS: {error!s:.300}") from error


# -- vectors on disk -----------------------------------------------------------------------------------------------


def write_vectors(path: Path, start: int, vectors: Floats) -> None:
    """Writes vectors to a file from a position on, truncating it there, and flushes them to disk.

    Args:
        path: File of vectors; created if it does not exist.
        start: Position of the first vector; those before it must be there.
        vectors: (N, D) float32.
    """
    at = START + 4 * start * vectors.shape[1]
    with path.open("r+b" if path.exists() else "w+b") as file:
        os.truncate(file.fileno(), at)
        file.seek(at)
        file.write(np.ascontiguousarray(vectors, "<f4").data)
        file.flush()
        os.fsync(file.fileno())


def vectors_checksum(path: Path, start: int, end: int, dimension: int) -> int:
    """Returns the CRC-32 of the vectors ``start`` to ``end - 1`` of a file; 0 if it does not exist.

    Args:
        path: File of vectors.
        start: Position of the first vector.
        end: Position after the last one.
        dimension: Numbers per vector.
    """
    if not path.exists():
        return 0
    numbers = np.fromfile(path, "<f4", (end - start) * dimension, offset=START + 4 * start * dimension)
    return zlib.crc32(numbers.data)


def finish_vectors(path: Path, vectors: int, dimension: int) -> None:
    """Makes a file of vectors a flat index, by truncating it and writing its header.

    Args:
        path: File of vectors.
        vectors: Number of vectors to keep.
        dimension: Numbers per vector.
    """
    with path.open("r+b") as file:
        os.truncate(file.fileno(), START + 4 * vectors * dimension)
        file.write(flat_header(vectors, dimension))
        file.flush()
        os.fsync(file.fileno())


def map_vectors(path: Path) -> npt.NDArray[np.float32]:
    """Returns the vectors of a flat index, (N, D) float32, memory-mapped."""
    _, dimension, vectors = describe(path)
    return np.memmap(path, "<f4", "r", START, (vectors, dimension))


# -- indexes -------------------------------------------------------------------------------------------------------


def write_index(card: DenseCard, source: Path, target: Path, progress: Progress) -> dict[str, Any]:
    """Builds the index that a card describes from a flat index.

    ``flat`` and ``ivf-sq8`` give the same bytes for the same vectors. ``hnsw`` does so only on one thread, because its
    links depend on the order in which vectors are added.

    Args:
        card: Card of the index.
        source: File of a flat index with at least one vector.
        target: File to write, which gets its name when it is complete. For ``flat`` it is a hard link to `source`.
        progress: Called with the number of vectors added.

    Returns:
        Facts about the index for the manifest: ``lists`` and ``training`` for ``ivf-sq8``, else empty.
    """
    target.unlink(missing_ok=True)
    temporary = target.with_name(f".{target.name}.part")
    temporary.unlink(missing_ok=True)
    facts: dict[str, Any] = {}
    if card.index == "flat":
        link(source, temporary)
    else:
        vectors = map_vectors(source)
        index: Any
        if card.index == "ivf-sq8":
            index, facts = _trained_lists(card, vectors)
        else:
            index = faiss.IndexHNSWFlat(vectors.shape[1], card.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = card.ef_construction
        for done in range(0, len(vectors), CHUNK):
            progress("adding vectors", done, len(vectors))
            index.add(np.array(vectors[done : done + CHUNK]))  # copied: FAISS needs numbers aligned to four bytes
        progress("adding vectors", len(vectors), len(vectors))
        with temporary.open("wb") as file:  # FAISS's own writer may fail silently when the disk is full
            faiss.write_index(index, _FAISS.PyCallbackIOWriter(file.write))
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.replace(target)
    return facts


def link(source: Path, target: Path) -> None:
    """Makes a hard link to a file, or copies the file if the file system cannot link it."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOSYS):
            raise
        shutil.copyfile(source, target)


def lists_of(card: DenseCard, vectors: int) -> tuple[int, int]:
    """Returns the number of inverted lists for a number of vectors, and the number of vectors that train them.

    FAISS's guideline is 4 to 16 times the square root of the number of vectors, with 39 to 256 training vectors
    per list.
    """
    lists = card.lists or max(1, min(4 * math.isqrt(vectors), vectors // LEAST_PER_LIST))
    lists = min(lists, vectors)
    return lists, min(vectors, max(lists, card.training or PER_LIST * lists))


def _trained_lists(card: DenseCard, vectors: Floats) -> tuple[Any, dict[str, Any]]:
    """Returns an index of trained but empty inverted lists, and their numbers."""
    dimension = vectors.shape[1]
    lists, training = lists_of(card, len(vectors))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(dimension), dimension, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = SEED
    index.cp.min_points_per_centroid = 1  # no warning for a tiny corpus
    index.cp.max_points_per_centroid = training  # otherwise FAISS would draw a sample of our sample
    chosen = np.random.default_rng(SEED).choice(len(vectors), training, replace=False, shuffle=False)
    index.train(np.array(vectors[np.sort(chosen)]))
    return index, {"lists": lists, "training": training}
