"""Keys and values of running rows, and of prefixes that were seen before. Used by `transformers_sampler` alone.

Shapes: B rows, H heads of keys and values, W columns of a batch, T tokens of one row, D width of a head. In a batch
every row ends at the same column; the columns in front of shorter rows are masked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

RowCache = list[tuple[Tensor, Tensor]]
"""Keys and values of one row, a pair of (H, T, D) per layer."""

ATTENTION = "searchgym_sdpa"
"""Name under which `grouped_attention` is registered."""


def grouped_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention of transformers' kind that does not copy keys and values for one new token per row.

    Where several query heads share a head of keys, transformers repeats the whole cache at every step, ten times the
    cost of the attention itself on a CPU. For a single position the queries of a group can be rows instead.

    Args:
        module: The attention layer.
        query: (B, query heads, positions, D).
        key: (B, H, W, D).
        value: (B, H, W, D).
        attention_mask: (B, 1, positions, W), or None where all is seen.
        kwargs: Whatever else the model passes.

    Returns:
        (output (B, positions, query heads, D), None).
    """
    batch, heads, positions, width = query.shape
    if positions > 1 or heads == key.shape[1] or kwargs.get("position_bias") is not None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    rows = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"))
    return output.reshape(batch, 1, heads, -1), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class BatchLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer for a running batch; columns are allocated ahead, so that a step copies nothing."""

    AHEAD = 64
    """Columns allocated beyond what is needed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.width = 0
        """Columns in use."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes room of width 0, of the shape, type and place of the first states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends columns.

        Args:
            key_states: (B, H, new columns, D).
            value_states: (B, H, new columns, D).
            args: Ignored.
            kwargs: Ignored.

        Returns:
            All keys and values, (B, H, W, D) each.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.states
        end = self.width + key_states.shape[2]
        if end > keys.shape[2]:
            keys = self.keys = _widened(keys[:, :, : self.width], end + self.AHEAD)
            values = self.values = _widened(values[:, :, : self.width], end + self.AHEAD)
        keys[:, :, self.width : end] = key_states
        values[:, :, self.width : end] = value_states
        self.width = end
        return keys[:, :, :end], values[:, :, :end]

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (B, H, columns in use and ahead, D) each."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Returns the columns in use."""
        return self.width


def _widened(states: Tensor, columns: int) -> Tensor:
    """Returns (B, H, columns, D) that begins with the given states; the rest is not set."""
    wide = states.new_empty((*states.shape[:2], columns, states.shape[3]))
    wide[:, :, : states.shape[2]] = states
    return wide


def pack(rows: Sequence[RowCache | None], lengths: Sequence[int], layers: int) -> Cache:
    """Returns a cache for a batch that continues these rows, each ending at the last column.

    Args:
        rows: One per row; None for a row that has seen nothing.
        lengths: How many tokens of each row to take.
        layers: Layers of the model.
    """
    batch = [BatchLayer() for _ in range(layers)]
    width = max(lengths)
    if width:
        first = next(row for row in rows if row is not None)
        for number, layer in enumerate(batch):
            # Zeros, not left unset: a masked column still takes part as 0 times its value, and must be finite.
            keys, values = (s.new_zeros((len(rows), s.shape[0], width, s.shape[2])) for s in first[number])
            for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                if row is not None:
                    keys[at, :, width - length :] = row[number][0][:, :length]
                    values[at, :, width - length :] = row[number][1][:, :length]
            layer.update(keys, values)
    return Cache(layers=list(batch))


def unpack(cache: Cache, row: int, start: int, end: int) -> RowCache:
    """Returns a copy of columns ``start:end`` of one row of a batch.

    Args:
        cache: What `pack` made.
        row: Number of the row.
        start: Column of its first token.
        end: Column after its last token.
    """
    states = [layer.states for layer in cache.layers if isinstance(layer, BatchLayer)]
    return [(keys[row, :, start:end].clone(), values[row, :, start:end].clone()) for keys, values in states]


@dataclass(slots=True)
class _Entry:
    ids: npt.NDArray[np.int32]
    cache: RowCache
    blocks: set[int] = field(default_factory=set)
    """Keys under which it can still be found."""


class PrefixStore:
    """Remembers rows, so that a later request with a common prefix forwards only the rest.

    An episode's next turn continues its last one, attempts at a question share its prompt, and all prompts share their
    instructions. Rows are found by hashes of their prefixes of whole blocks, then compared token by token; a newer row
    takes over the prefixes that it shares with older ones.

    Args:
        max_tokens: Tokens that are remembered; beyond it the row used longest ago is forgotten. 0: nothing is.
    """

    BLOCK = 16
    """Tokens per block: the shortest common prefix that is found."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._owner: dict[int, int] = {}
        """Hash of a prefix of whole blocks to the key of the entry that holds it."""
        self._added = 0
        self.tokens = 0
        """Tokens remembered now."""

    def longest(self, ids: npt.NDArray[np.int32]) -> tuple[int, RowCache | None]:
        """Finds the row with the longest common prefix.

        Args:
            ids: (T,) int32 token ids of a request.

        Returns:
            (length of the prefix, at most T - 1 because the last token's logits are wanted; the row, to be read only up
            to there); (0, None) if there is none.
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
        """Remembers a row.

        Args:
            ids: (T,) int32 token ids.
            cache: Its keys and values, T tokens; not changed by anyone from now on.
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
        """Forgets everything."""
        self._entries.clear()
        self._owner.clear()
        self.tokens = 0

    def _blocks(self, ids: npt.NDArray[np.int32]) -> list[int]:
        """Returns the hash of every prefix of whole blocks, shortest first."""
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
