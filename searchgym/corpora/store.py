"""Stores passages on disk and finds them by position or id in constant memory, with memory-mapped files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import MAX_LINE, FilePath, write_atomic
from searchgym.corpora.ids import FirstPositions, hash_id, positions_of, sorted_hashes
from searchgym.corpora.packed import DICTIONARY, PACKED, Packer, Unpacker, is_packed, train_dictionary
from searchgym.corpora.passages import links_of
from searchgym.errors import DataError
from searchgym.records import Passage

PASSAGES: Final = "passages.jsonl"
"""File of passages in order, one JSON object ``{"id", "title", "text"}`` per line; a large corpus has `PACKED`."""
OFFSETS: Final = "offsets.npy"
"""File of offsets, (N + 1,) int64: the byte where each line or frame begins, then the byte where the last one ends."""
ENDS: Final = ".ends.part"
"""File from which a later writer continues, (N,) int64: the byte where each line or frame ends."""
HASHES: Final = ".hashes.part"
"""File from which a later writer continues, (N,) uint64: the hash of each id, 0 if the id is the position."""
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

    Passages are compressed if the first batch is large (`is_packed`).

    Args:
        folder: An existing folder; passages of an earlier writer are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends, self._hashes = (folder / ENDS).open("ab"), (folder / HASHES).open("ab")
        self._lines: BinaryIO | None = None

    def __enter__(self) -> PassageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # closing may fail, since it flushes the buffer
            for file in (self._ends, self._hashes, self._lines):
                if file is not None:
                    stack.callback(file.close)

    def cut(self, passages: int) -> None:
        """Removes all but the first passages.

        Raises:
            DataError: There are not so many.
        """
        ends = np.fromfile(self._folder / ENDS, np.int64, passages)
        if len(ends) < passages:
            raise DataError(f"has {len(ends)} passages, not {passages}", self._folder / ENDS)
        for file in (self._ends, self._hashes):
            os.truncate(file.fileno(), 8 * passages)
        out = self._open_lines()
        os.truncate(out.fileno(), int(ends[-1]) if passages else 0)
        if not passages:  # the next batch decides anew whether to compress
            out.close()
            self._lines = None
            for name in (PASSAGES, PACKED, DICTIONARY):
                (self._folder / name).unlink(missing_ok=True)

    def write(self, lines: Sequence[bytes], ids: Sequence[str]) -> None:
        """Appends the canonical lines of passages, and flushes them to disk.

        Args:
            lines: Their lines.
            ids: Their ids.
        """
        if not os.fstat(self._ends.fileno()).st_size and is_packed(lines):
            with write_atomic(self._folder / DICTIONARY) as file:
                file.write(train_dictionary(lines))
        out = self._open_lines()
        if (self._folder / DICTIONARY).exists():
            lines = Packer((self._folder / DICTIONARY).read_bytes()).pack(lines)
        start = os.fstat(out.fileno()).st_size
        out.write(b"".join(lines))
        first = os.fstat(self._ends.fileno()).st_size // 8
        hashes = [0 if id == str(position) else hash_id(id) for position, id in enumerate(ids, first)]
        self._hashes.write(np.array(hashes, np.uint64).tobytes())
        self._ends.write((start + np.cumsum([len(line) for line in lines], dtype=np.int64)).tobytes())
        for each in (out, self._ends, self._hashes):
            each.flush()
            os.fsync(each.fileno())

    def finish(self) -> PassageStore:
        """Finishes the passage store being written and returns it opened.

        `ENDS` and `HASHES` may then be deleted, unless another writer continues.
        """
        self.__exit__()
        ends, hashes = np.fromfile(self._folder / ENDS, np.int64), np.fromfile(self._folder / HASHES, np.uint64)
        np.save(self._folder / OFFSETS, np.concatenate([[0], ends]).astype(np.int64))
        (self._folder / IDS).unlink(missing_ok=True)
        if hashes.any():
            for position in np.flatnonzero(hashes == 0).tolist():
                hashes[position] = hash_id(str(position))
            np.save(self._folder / IDS, sorted_hashes(hashes))
        return PassageStore(self._folder)

    def _open_lines(self) -> BinaryIO:
        """Returns the file of lines or frames, opened for appending."""
        if self._lines is None:
            name = PACKED if (self._folder / DICTIONARY).exists() else PASSAGES
            self._lines = (self._folder / name).open("ab")
        return self._lines


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
            row = json.loads(line.decode())
            return Passage(row["id"], row["title"], row["text"], links_of(row) if "links" in row else ())
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"not a passage: {error!r}", self._path, position + 1) from None

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
