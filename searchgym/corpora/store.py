"""Passages by position in constant memory: a memory-mapped JSONL file and the offset of every line."""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.corpora.files import FilePath
from searchgym.corpora.passages import passage_line
from searchgym.errors import DataError
from searchgym.records import Passage

PASSAGES: Final = "passages.jsonl"
"""One passage per line, in order: ``{"id", "title", "text"}``."""
OFFSETS: Final = "offsets.npy"
"""(N + 1,) int64: byte where each line begins, and the last one ends."""


def unique(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yields the passages as they are.

    Raises:
        DataError: An id occurs twice.
    """
    seen: set[str] = set()
    for number, passage in enumerate(passages):
        if passage.id in seen:
            raise DataError(
                f"passage {number} (from 0) has the id {passage.id!r} again: ids must be unique in a corpus"
            )
        seen.add(passage.id)
        yield passage


def write_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Writes passages to a folder while passing them on; the store is complete when the iteration ends.

    Args:
        passages: Read once, one at a time.
        folder: An existing folder.

    Yields:
        Each passage, once it is written.
    """
    offsets = array("q", [0])
    with (folder / PASSAGES).open("wb") as file:
        for passage in passages:
            offsets.append(offsets[-1] + file.write(passage_line(passage)))
            yield passage
    np.save(folder / OFFSETS, np.frombuffer(offsets, np.int64))


class PassageStore:
    """Reads passages written by `write_passages`; nothing is kept in memory but what the system caches.

    Args:
        folder: Holds `PASSAGES` and `OFFSETS`.

    Raises:
        DataError: The two files do not fit each other.
    """

    def __init__(self, folder: FilePath) -> None:
        self._folder = Path(folder)
        self._offsets = np.asarray(np.load(self._folder / OFFSETS, mmap_mode="r"))
        with (self._folder / PASSAGES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._offsets.dtype != np.int64 or self._offsets.ndim != 1 or self._offsets[-1] != len(self._lines):
            raise DataError(f"does not fit {PASSAGES} ({len(self._lines)} bytes)", self._folder / OFFSETS)

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._offsets) - 1

    def __getitem__(self, position: int, /) -> Passage:
        """Returns the passage at a position, 0 to len - 1.

        Raises:
            IndexError: There is no such position.
            DataError: The line there is not a passage: the file was changed.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} passages")
        line = self._lines[self._offsets[position] : self._offsets[position + 1]]
        try:
            row = json.loads(line.decode())
            return Passage(row["id"], row["title"], row["text"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"not a passage: {error!r}", self._folder / PASSAGES, position + 1) from None

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        return (self[position] for position in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore, (self._folder,)
