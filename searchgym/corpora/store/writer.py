"""Writes passages to disk in batches, so that an interrupted writer can be continued."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from searchgym.corpora.files import write_atomic
from searchgym.corpora.ids import FirstPositions, hash_id, is_position, sorted_hashes
from searchgym.corpora.store.packed import DICTIONARY, PACKED, Packer, is_packed, train_dictionary
from searchgym.corpora.store.reader import IDS, OFFSETS, PASSAGES, PassageStore
from searchgym.errors import DataError
from searchgym.records import Passage

ENDS: Final = ".ends.part"
"""File from which a later writer continues, (N,) int64: the byte where each line or frame ends."""
HASHES: Final = ".hashes.part"
"""File from which a later writer continues, (N,) uint64: the hash of each id, 0 if the id is the position."""


def unique(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yields passages unchanged while checking that their ids are unique.

    Raises:
        DataError: An id occurs twice.
    """
    seen, plain = FirstPositions(), 0  # the first ids that are their positions are all different, and not recorded
    for number, passage in enumerate(passages):
        id = passage.id
        if plain == number and id == str(number):
            plain += 1
        elif seen.first(id, number) is not None or (is_position(id) and int(id) < plain):
            raise DataError(f"passage {number} (from 0) repeats the id {id!r}: ids must be unique in a corpus")
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

    def passages(self) -> int:
        """Returns the number of passages on disk; their contents may be damaged, see `checksum`."""
        return min(os.fstat(file.fileno()).st_size // 8 for file in (self._ends, self._hashes))

    def checksum(self, first: int, last: int) -> int:
        """Returns the CRC-32 of what is on disk of passages ``first`` to ``last - 1``; 0 if their ends are wrong."""
        before = max(first - 1, 0)
        ends = np.fromfile(self._folder / ENDS, np.int64, last - before, offset=8 * before)
        hashes = np.fromfile(self._folder / HASHES, np.uint64, last - first, offset=8 * first)
        start, end = int(ends[0]) if first else 0, int(ends[-1])
        if not 0 <= start <= end <= os.fstat(self._open_lines().fileno()).st_size:
            return 0
        packed = (self._folder / DICTIONARY).exists()
        checksum = zlib.crc32((self._folder / DICTIONARY).read_bytes()) if packed else 0
        with (self._folder / (PACKED if packed else PASSAGES)).open("rb") as file:
            file.seek(start)
            checksum = zlib.crc32(file.read(end - start), checksum)
        return zlib.crc32(hashes.tobytes(), zlib.crc32(ends.tobytes(), checksum))

    def cut(self, passages: int) -> None:
        """Removes all but the first passages.

        Raises:
            DataError: There are not so many.
        """
        if self.passages() < passages:
            raise DataError(f"has {self.passages()} passages, not {passages}", self._folder / ENDS)
        ends = np.fromfile(self._folder / ENDS, np.int64, passages)
        for file in (self._ends, self._hashes):
            os.truncate(file.fileno(), 8 * passages)
        out = self._open_lines()
        size = os.fstat(out.fileno()).st_size  # an end that is damaged may be anywhere
        os.truncate(out.fileno(), min(max(int(ends[-1]), 0), size) if passages else 0)
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
