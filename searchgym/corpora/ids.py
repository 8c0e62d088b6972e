"""Many ids in little memory: where each came first, kept by a 64-bit hash."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

EXACT: Final = 200_000
"""Ids kept as they are; of more, hashes are kept."""


def hash_id(id: str) -> int:
    """Returns 64 bits that stand for an id; never 0."""
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


class FirstPlaces:
    """Tells an id that comes again from a new one, and where it came first.

    Of many ids it keeps 64 bits and the place, 21 to 43 bytes each: of 21 million different ids, two are then taken
    for the same with a probability of 1.2e-5.
    """

    def __init__(self) -> None:
        self._exact: dict[str, int] | None = {}
        self._hashed: _Table | None = None

    def first(self, id: str, place: int) -> int | None:
        """Notes an id's place, at least 0; returns the place where it came before, None if it is new."""
        if self._exact is not None:
            if (found := self._exact.setdefault(id, place)) != place:
                return found
            if len(self._exact) > EXACT:
                self._hashed = _Table(2 * EXACT)
                for old, where in self._exact.items():
                    self._hashed.insert(hash_id(old), where)
                self._exact = None
            return None
        assert self._hashed is not None
        found = self._hashed.insert(hash_id(id), place)
        return None if found == place else found

    def __len__(self) -> int:
        """Returns the number of ids."""
        return len(self._exact) if self._exact is not None else self._hashed.count if self._hashed else 0


class _Table:
    """Open addressing: a hash and a place in each row, 0 where there is none."""

    def __init__(self, rows: int) -> None:
        self._insert, self._move = _kernels()
        self._rows = np.zeros((1 << (2 * rows - 1).bit_length(), 2), np.uint64)
        self.count = 0

    def insert(self, key: int, place: int) -> int:
        """Returns the place of a hash: the one it had, else the new one."""
        if 4 * self.count >= 3 * len(self._rows):
            larger = np.zeros((2 * len(self._rows), 2), np.uint64)
            self._move(self._rows, larger)
            self._rows = larger
        found = int(self._insert(self._rows, np.uint64(key), np.uint64(place)))
        self.count += found == place
        return found


def _kernels() -> tuple[Any, Any]:
    """Returns the compiled functions; numba is loaded by those only who have many ids."""
    import numba

    @numba.njit(nogil=True)
    def insert(rows: Any, key: Any, place: Any) -> Any:
        mask = np.uint64(len(rows) - 1)
        at = key & mask
        while rows[at, 0] != 0:
            if rows[at, 0] == key:
                return rows[at, 1]
            at = (at + np.uint64(1)) & mask
        rows[at, 0], rows[at, 1] = key, place
        return place

    @numba.njit(nogil=True)
    def move(old: Any, new: Any) -> None:
        for row in range(len(old)):
            if old[row, 0] != 0:
                insert(new, old[row, 0], old[row, 1])

    return insert, move
