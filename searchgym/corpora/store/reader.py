"""Finds passages on disk by position or id in constant memory, with memory-mapped files."""

from __future__ import annotations

import hashlib
import json
import mmap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import MAX_LINE, FilePath
from searchgym.corpora.ids import hash_id, is_position, positions_of
from searchgym.corpora.passages import links_of
from searchgym.corpora.store.packed import PACKED, Unpacker
from searchgym.errors import DataError
from searchgym.records import Passage

PASSAGES: Final = "passages.jsonl"
"""File of passages in order, one JSON object ``{"id", "title", "text"}`` per line; a large corpus has `PACKED`."""
OFFSETS: Final = "offsets.npy"
"""File of offsets, (N + 1,) int64: the byte where each line or frame begins, then the byte where the last one ends."""
IDS: Final = "ids.npy"
"""File of ids, (2, N) uint64: ascending hashes, and the position of each. Absent if every id is its position."""


def load_array(path: Path, mapped: bool = True) -> npt.NDArray[Any]:
    """Returns the array of a ``.npy`` file, memory-mapped if `mapped`; pickled objects are refused.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a ``.npy`` file, or holds objects.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (SyntaxError, tokenize.TokenError, OverflowError, MemoryError) as error:  # numpy, on forged headers
        raise ValueError(f"{path.name} is not an array: {error}") from error
    return array


class PassageStore:
    """Reads passages written by `writer.PassageWriter` from memory-mapped files.

    Args:
        folder: Folder that holds `OFFSETS`, and `PASSAGES` or `PACKED`.

    Raises:
        DataError: The files do not match.
    """

    def __init__(self, folder: FilePath) -> None:
        self._folder = Path(folder)
        self._offsets = np.asarray(load_array(self._folder / OFFSETS))
        self._path = self._folder / (PACKED if (self._folder / PACKED).exists() else PASSAGES)
        self._unpacker = Unpacker(self._folder) if self._path.name == PACKED else None
        with self._path.open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        plain = self._offsets.dtype == np.int64 and self._offsets.ndim == 1
        if not plain or self._offsets[-1:].tolist() != [len(self._lines)]:
            raise DataError(f"does not fit {self._path.name} ({len(self._lines)} bytes)", self._folder / OFFSETS)
        ids = self._folder / IDS
        self._ids = load_array(ids) if ids.exists() else None
        if self._unpacker is not None and len(self):
            self._line(0)  # the dictionary is that of the frames

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._offsets) - 1

    def __getitem__(self, position: int, /) -> Passage:
        """Returns the passage at a position, from 0 to len - 1.

        Raises:
            IndexError: The position does not exist.
            DataError: The line at the position is not a passage: the file was changed.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} passages")
        line = self._line(position)
        try:
            return _passage(json.loads(line.decode()))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"not a passage: {error!r}", self._path, position + 1) from None

    def read(self, positions: Sequence[int]) -> list[Passage]:
        """Returns the passages at some positions, in half the time that it takes one by one.

        Raises:
            IndexError: A position does not exist.
            DataError: A line is not a passage.
        """
        try:
            lines = b",".join([self._line(position) for position in positions])
            passages = [_passage(row) for row in json.loads(f"[{lines.decode()}]")]
        except (ValueError, TypeError, LookupError, RecursionError, DataError):
            passages = []
        # Something is wrong, and reading one by one tells what.
        return passages if len(passages) == len(positions) else [self[position] for position in positions]

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        return (self[position] for position in range(len(self)))

    def position(self, id: str) -> int:
        """Returns the position of the passage with an id.

        Raises:
            KeyError: No passage has the id.
        """
        if self._ids is None:  # every id is its position
            if is_position(id) and int(id) < len(self):
                return int(id)
            raise KeyError(id)
        for position in positions_of(self._ids, hash_id(id)):
            if self[position].id == id:
                return position
        raise KeyError(id)

    def sha256(self) -> str:
        """Returns the sha256 of the canonical lines of all passages, which identifies the corpus."""
        digest = hashlib.sha256()
        for position in range(len(self)):
            digest.update(self._line(position))
        return digest.hexdigest()

    def _line(self, position: int) -> bytes:
        """Returns the canonical line of the passage at a position."""
        start, end = int(self._offsets[position]), int(self._offsets[position + 1])
        if not 0 <= end - start <= MAX_LINE:
            raise DataError(f"a line of more than {MAX_LINE:,} bytes", self._path, position + 1)
        if self._unpacker is None:
            return self._lines[start:end]
        try:
            return self._unpacker.unpack(self._lines[start:end])
        except ValueError as error:
            raise DataError(str(error), self._path, position + 1) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore, (self._folder,)


def _passage(row: Any) -> Passage:
    """Returns the passage of a row of the canonical format; raises an error of Python's if it is none."""
    return Passage(row["id"], row["title"], row["text"], links_of(row) if "links" in row else ())
