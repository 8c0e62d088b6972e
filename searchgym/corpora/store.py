"""Stores passages on disk and finds them by position or id in constant memory, with memory-mapped files."""

from __future__ import annotations

import json
import mmap
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import MAX_LINE, FilePath
from searchgym.corpora.ids import FirstPositions, hash_id, positions_of, sorted_hashes
from searchgym.corpora.passages import links_of
from searchgym.errors import DataError
from searchgym.records import Passage

PASSAGES: Final = "passages.jsonl"
"""File of passages in order, one JSON object ``{"id", "title", "text"}`` per line."""
OFFSETS: Final = "offsets.npy"
"""File of line offsets, (N + 1,) int64: the byte where each line begins, then the byte where the last line ends."""
ENDS: Final = ".ends.part"
"""File from which a later writer continues, (N,) int64: the byte where each line ends."""
IDS: Final = "ids.npy"
"""File of ids, (2, N) uint64: ascending hashes, and the position of each. Absent if every id is its position."""


def unique(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yields passages unchanged while checking that their ids are unique.

    Raises:
        DataError: An id occurs twice.
    """
    seen = FirstPositions()
    for number, passage in enumerate(passages):
        if seen.first(passage.id, number) is not None:
            raise DataError(f"passage {number} (from 0) repeats the id {passage.id!r}: ids must be unique in a corpus")
        yield passage


class PassageWriter:
    """Writes passages to a folder in batches; the last ones can be removed again.

    Args:
        folder: An existing folder; passages of an earlier writer are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = (folder / PASSAGES).open("ab")
        self._ends = (folder / ENDS).open("ab")

    def __enter__(self) -> PassageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._lines.close()  # may fail: closing flushes the buffer
        finally:
            self._ends.close()

    def cut(self, passages: int, bytes: int) -> None:
        """Truncates the files to a given number of passages.

        Args:
            passages: Number of passages to keep.
            bytes: Total length of their lines, in bytes.
        """
        os.truncate(self._lines.fileno(), bytes)
        os.truncate(self._ends.fileno(), 8 * passages)

    def write(self, lines: Sequence[bytes]) -> None:
        """Appends the canonical lines of passages and flushes them to disk."""
        start = os.fstat(self._lines.fileno()).st_size
        self._lines.write(b"".join(lines))
        self._ends.write((start + np.cumsum([len(line) for line in lines], dtype=np.int64)).tobytes())
        for file in (self._lines, self._ends):
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> PassageStore:
        """Finishes the passage store being written and returns it opened.

        `ENDS` may then be deleted, unless another writer continues.
        """
        self.__exit__()
        ends = np.fromfile(self._folder / ENDS, np.int64)
        np.save(self._folder / OFFSETS, np.concatenate([[0], ends]).astype(np.int64))
        (self._folder / IDS).unlink(missing_ok=True)
        store = PassageStore(self._folder)
        hashes = np.zeros(len(store), np.uint64)
        plain = True  # whether every id so far is its position
        for position, passage in enumerate(store):
            hashes[position] = hash_id(passage.id)
            plain = plain and passage.id == str(position)
        if not plain:
            np.save(self._folder / IDS, sorted_hashes(hashes))
        return PassageStore(self._folder)


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
    """Reads passages written by `PassageWriter` from memory-mapped files.

    Args:
        folder: Folder that holds `PASSAGES` and `OFFSETS`.

    Raises:
        DataError: The two files do not match.
    """

    def __init__(self, folder: FilePath) -> None:
        self._folder = Path(folder)
        self._offsets = np.asarray(load_array(self._folder / OFFSETS))
        with (self._folder / PASSAGES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        plain = self._offsets.dtype == np.int64 and self._offsets.ndim == 1
        if not plain or self._offsets[-1:].tolist() != [len(self._lines)]:
            raise DataError(f"does not fit {PASSAGES} ({len(self._lines)} bytes)", self._folder / OFFSETS)
        ids = self._folder / IDS
        self._ids = load_array(ids) if ids.exists() else None

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
        start, end = int(self._offsets[position]), int(self._offsets[position + 1])
        if not 0 <= end - start <= MAX_LINE:
            raise DataError(f"a line of more than {MAX_LINE:,} bytes", self._folder / PASSAGES, position + 1)
        line = self._lines[start:end]
        try:
            row = json.loads(line.decode())
            return Passage(row["id"], row["title"], row["text"], links_of(row) if "links" in row else ())
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"not a passage: {error!r}", self._folder / PASSAGES, position + 1) from None

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        return (self[position] for position in range(len(self)))

    def position(self, id: str) -> int:
        """Returns the position of the passage with an id.

        Raises:
            KeyError: No passage has the id.
        """
        if self._ids is None:  # every id is its position, so "007" or "+7" is not an id
            if id.isascii() and id.isdigit() and str(int(id)) == id and int(id) < len(self):
                return int(id)
            raise KeyError(id)
        for position in positions_of(self._ids, hash_id(id)):
            if self[position].id == id:
                return position
        raise KeyError(id)

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore, (self._folder,)
