"""Prefix cache of the transformers sampler: keys and values of token sequences that were seen before."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from searchgym.rollout.transformers.kv_cache import RowCache


@dataclass(slots=True)
class _Entry:
    ids: npt.NDArray[np.int32]
    cache: RowCache
    blocks: set[int] = field(default_factory=set)
    """Hashes under which the entry can still be found."""


class PrefixStore:
    """Prefix cache: it keeps rows, so that a later request with a common prefix runs the model only on the rest.

    An episode's next turn continues its last one, attempts at a question share its prompt, and all prompts share their
    instructions. Rows are found by hashes of their prefixes of whole blocks, then compared token by token; a newer row
    takes over the prefixes that it shares with older ones.

    Args:
        max_tokens: Maximum number of tokens kept; beyond it the least recently used row is dropped. 0 keeps nothing.
    """

    BLOCK = 16
    """Number of tokens per block, which is the shortest common prefix that can be found."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._owner: dict[int, int] = {}
        """Hash of a prefix of whole blocks to the key of the entry that holds it."""
        self._added = 0
        self.tokens = 0
        """Number of tokens kept now."""

    def longest(self, ids: npt.NDArray[np.int32]) -> tuple[int, RowCache | None]:
        """Finds the row with the longest common prefix.

        Args:
            ids: (T,) int32 token ids of a request.

        Returns:
            Length of the common prefix, at most T - 1 since the last token's logits are needed, and the row, of which
            only that prefix may be used; (0, None) if there is none.
        """
        for block in reversed(self._blocks(ids)):
            if (owner := self._owner.get(block)) is not None:
                self._entries.move_to_end(owner)
                entry = self._entries[owner]
                size = min(len(entry.ids), len(ids) - 1)
                differ = np.flatnonzero(entry.ids[:size] != ids[:size])
                length = int(differ[0]) if len(differ) else size
                return (length, entry.cache) if length else (0, None)
        return 0, None

    def add(self, ids: npt.NDArray[np.int32], cache: RowCache) -> None:
        """Stores a row, and drops the least recently used rows beyond the maximum.

        Args:
            ids: (T,) int32 token ids of the row.
            cache: Keys and values of its T tokens, which must not be changed afterwards.
        """
        blocks = set(self._blocks(ids))
        if not blocks or len(ids) > self._max_tokens:
            return
        self._added += 1
        for block in blocks:
            if (old := self._owner.get(block)) is not None:
                self._disown(old, block)
            self._owner[block] = self._added
        self._entries[self._added] = _Entry(ids, cache, blocks)
        self.tokens += len(ids)
        while self.tokens > self._max_tokens:
            self._forget(next(iter(self._entries)))

    def clear(self) -> None:
        """Removes all rows."""
        self._entries.clear()
        self._owner.clear()
        self.tokens = 0

    def _blocks(self, ids: npt.NDArray[np.int32]) -> list[int]:
        """Returns the hash of each prefix of whole blocks, shortest first."""
        hashes: list[int] = []
        for start in range(0, len(ids) - self.BLOCK + 1, self.BLOCK):
            hashes.append(hash((hashes[-1] if hashes else 0, ids[start : start + self.BLOCK].tobytes())))
        return hashes

    def _disown(self, key: int, block: int) -> None:
        entry = self._entries[key]
        entry.blocks.discard(block)
        if not entry.blocks:
            self._forget(key)

    def _forget(self, key: int) -> None:
        entry = self._entries.pop(key)
        self.tokens -= len(entry.ids)
        for block in entry.blocks:
            del self._owner[block]
