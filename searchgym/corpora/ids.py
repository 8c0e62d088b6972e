"""Looks up ids and detects repeated ones in little memory, by 64-bit hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

EXACT: Final = 200_000
"""Maximum number of ids kept as text; with more, only hashes are kept."""


def is_position(id: str) -> bool:
    """Returns whether an id is written as a position would be: ``7``, not ``07`` or ``+7``."""
    return id.isascii() and id.isdigit() and len(id) < 20 and str(int(id)) == id


def hash_id(id: str) -> int:
    """Returns the 64-bit hash of an id, which is never 0 (0 marks a free row of the table)."""
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def sorted_hashes(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns a table for `positions_of`, (2, N) uint64: the hashes in ascending order, and the position of each.

    Args:
        hashes: (N,) uint64, the hash at each position; equal ones stay in order.
    """
    order = np.argsort(hashes, kind="stable")
    return np.stack([hashes[order], order.astype(np.uint64)])


def positions_of(table: npt.NDArray[np.uint64], hash: int) -> Iterator[int]:
    """Yields the positions that have a hash, in order; different ids may share one."""
    key = np.uint64(hash)
    first, end = np.searchsorted(table[0], key), np.searchsorted(table[0], key, "right")
    return (int(position) for position in table[1, first:end])


class FirstPositions:
    """Records the first position of each id, to detect repeated ids.

    Beyond `EXACT` ids it keeps only a 64-bit hash and the position, 21 to 43 bytes per id. Among 21 million different
    ids, any two have the same hash with a probability of 1.2e-5.
    """

    def __init__(self) -> None:
        self._exact: dict[str, int] | None = {}
        self._hashed: _Table | None = None

    def first(self, id: str, position: int) -> int | None:
        """Records a position of an id (at least 0) and returns the id's first position, or None if the id is new."""
        if self._exact is not None:
            if (first := self._exact.setdefault(id, position)) != position:
                return first
            if len(self._exact) > EXACT:
                self._hashed = _Table(2 * EXACT)
                for old, where in self._exact.items():
                    self._hashed.insert(hash_id(old), where)
                self._exact = None
            return None
        assert self._hashed is not None
        first = self._hashed.insert(hash_id(id), position)
        return None if first == position else first

    def __len__(self) -> int:
        """Returns the number of different ids."""
        return len(self._exact) if self._exact is not None else self._hashed.count if self._hashed else 0


class _Table:
    """Hash table with open addressing: each row holds a hash and a position; a hash of 0 marks a free row."""

    def __init__(self, rows: int) -> None:
        self._insert, self._move = _kernels()
        self._rows = np.zeros((1 << (2 * rows - 1).bit_length(), 2), np.uint64)
        self.count = 0

    def insert(self, key: int, position: int) -> int:
        """Inserts a hash and returns its position: the recorded one if the hash is known, else `position`."""
        if 4 * self.count >= 3 * len(self._rows):  # keeps probe sequences short
            larger = np.zeros((2 * len(self._rows), 2), np.uint64)
            self._move(self._rows, larger)
            self._rows = larger
        first = int(self._insert(self._rows, np.uint64(key), np.uint64(position)))
        self.count += first == position
        return first


def _kernels() -> tuple[Any, Any]:
    """Returns the compiled functions (insert, move); numba is imported here because only large corpora need it."""
    import numba

    @numba.njit(nogil=True)
    def insert(rows: Any, key: Any, position: Any) -> Any:
        mask = np.uint64(len(rows) - 1)  # the number of rows is a power of two
        at = key & mask
        while rows[at, 0] != 0:
            if rows[at, 0] == key:
                return rows[at, 1]
            at = (at + np.uint64(1)) & mask
        rows[at, 0], rows[at, 1] = key, position
        return position

    @numba.njit(nogil=True)
    def move(old: Any, new: Any) -> None:
        for row in range(len(old)):
            if old[row, 0] != 0:
                insert(new, old[row, 0], old[row, 1])

    return insert, move
