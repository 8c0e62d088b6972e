"""Keys and values of the transformers sampler, for running rows and earlier requests, and attention over them.

Shapes: B slots of a batch, H key-value heads, W columns in use, T tokens of one row, D width of a head. All rows end in
the same column, so that a step writes one column, and the last n columns are the last n tokens of every row (as sliding
windows need); columns before shorter rows are masked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
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
from typing_extensions import override

RowCache = list[tuple[Tensor, Tensor]]
"""Keys and values of one row: per layer, a pair of tensors (H, T, D)."""

ATTENTION = "searchgym_sdpa"
"""Name under which `grouped_attention` is registered with transformers."""


def grouped_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Computes attention as transformers does, faster if there is one new token per row.

    If several query heads share a key-value head, transformers repeats the whole cache at every step, which on a CPU
    costs ten times the attention itself. For a single position, the queries of a group can serve as positions instead.
    A single query per head in bfloat16 is duplicated: on a CPU, torch multiplies a bfloat16 matrix by two vectors in
    half the time that one takes (``benchmarks/decode_attention.py``).

    Args:
        module: Attention layer.
        query: (B, query heads, positions, D) queries.
        key: (B, H, W, D) keys.
        value: (B, H, W, D) values.
        attention_mask: (B, 1, positions, W) mask, or None if every column is visible.
        kwargs: Further arguments of transformers' attention functions.

    Returns:
        Output, (B, positions, query heads, D), and None instead of attention weights.
    """
    batch, heads, positions, width = query.shape
    group = heads // key.shape[1]
    twice = group == 1 and key.dtype == torch.bfloat16 and key.device.type == "cpu"
    if positions > 1 or not (group > 1 or twice) or kwargs.get("position_bias") is not None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    rows = query.expand(-1, -1, 2, -1) if twice else query.reshape(batch, key.shape[1], group, width)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"))
    return output[:, :, :group].reshape(batch, 1, heads, -1), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class SlotLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer; slots and columns are allocated in advance, so that few steps copy data."""

    AHEAD = 64
    """Number of columns allocated beyond those needed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0  # slots in use, which are the first ones
        self.first = self.end = 0  # columns in use: the first, and one past the last

    @override
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # The dtype is that of the values: in mixed precision, positions make keys float32, and attention rounds them
        # to the dtype of the values again.
        self.dtype, self.device, self.count = value_states.dtype, key_states.device, len(key_states)
        self.keys, self.values = key_states[:, :, :0].to(self.dtype), value_states[:, :, :0]
        self.is_initialized = True

    @override
    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        if self.end + new > self.states[0].shape[2]:
            used, wide = self.end - self.first, []
            for states in self.states:
                # 0, not uninitialised: masked columns still enter the sum as 0 times their value, which would be NaN
                # for an infinite or NaN value.
                grown = states.new_zeros((*states.shape[:2], used + new + self.AHEAD, states.shape[3]))
                grown[:, :, :used] = states[:, :, self.first : self.end]
                wide.append(grown)
            (self.keys, self.values), self.first, self.end = wide, 0, used
        keys, values = (states[: self.count] for states in self.states)
        keys[:, :, self.end : self.end + new] = key_states
        values[:, :, self.end : self.end + new] = value_states
        self.end += new
        return keys[:, :, self.first : self.end], values[:, :, self.first : self.end]

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Allocated keys and values, (all slots, H, all columns, D) each."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    @override
    def get_seq_length(self) -> int:
        return self.end - self.first


class SlotCache(Cache):
    """Cache whose first slots hold one row each; rows are added after the last one and removed between steps.

    Args:
        layers: Number of layers of the model.
    """

    def __init__(self, layers: int) -> None:
        self.slots = [SlotLayer() for _ in range(layers)]
        super().__init__(layers=list(self.slots))

    @property
    def end(self) -> int:
        """Index of the column after the last one in use."""
        return self.slots[0].end

    def add(self, rows: Sequence[RowCache | None], lengths: Sequence[int], present: int = 0) -> None:
        """Adds rows after the present ones.

        Args:
            rows: Keys and values of each row; None for an empty row.
            lengths: Number of tokens to use of each row; 0 for None.
            present: Length of the longest present row, in tokens.
        """
        like = next((row for row in rows if row is not None), None)
        for number, layer in enumerate(self.slots):
            if like is not None:
                self._make_room(layer, like[number], layer.count + len(rows), max(lengths), present)
            for cached, length in zip(rows, lengths, strict=True):
                if cached is not None:
                    _write(layer, layer.count, cached[number], length)
                layer.count += layer.is_initialized

    @staticmethod
    def _make_room(layer: SlotLayer, like: tuple[Tensor, Tensor], count: int, length: int, present: int) -> None:
        """Grows a layer, if needed, to `count` slots and rows of `length` tokens.

        Args:
            layer: Layer to grow.
            like: Keys and values (H, T, D) of a row, for shape, dtype and device.
            count: Number of slots needed.
            length: Longest new row, in tokens.
            present: Longest present row, in tokens.
        """
        if layer.is_initialized and count <= len(layer.states[0]) and length <= layer.end:
            return
        # More than needed, since rows come one by one and grow from turn to turn. Zeros as in `SlotLayer.update`.
        spare = layer.AHEAD * 4 if layer.is_initialized else 0
        end, slots = max(length, present) + spare, count + (count // 4 if layer.is_initialized else 0)
        grown = [row.new_zeros((slots, row.shape[0], end + layer.AHEAD, row.shape[2])) for row in like]
        if layer.is_initialized:
            for states, old in zip(grown, layer.states, strict=True):
                states[: layer.count, :, end - present : end] = old[: layer.count, :, layer.end - present : layer.end]
        else:
            layer.lazy_initialization(*grown)
            layer.count = 0
        layer.keys, layer.values = grown
        layer.first, layer.end = end - max(length, present), end

    def remove(self, slot: int, last_length: int) -> None:
        """Removes a row and moves the last row into its slot.

        Args:
            slot: Slot of the row to remove.
            last_length: Length of the last row, in tokens.
        """
        for layer in self.slots:
            layer.count -= 1
            if slot < layer.count:
                keys, values = (s[layer.count, :, layer.end - last_length : layer.end] for s in layer.states)
                _write(layer, slot, (keys, values), last_length)

    def trim(self, columns: int) -> None:
        """Keeps only the last `columns` columns in use."""
        for layer in self.slots:
            layer.first = layer.end - columns

    def row(self, slot: int, length: int) -> RowCache:
        """Returns a copy of the keys and values in a slot's last `length` columns."""
        return [
            (keys[slot, :, columns].clone(), values[slot, :, columns].clone())
            for layer in self.slots
            for columns in [slice(layer.end - length, layer.end)]
            for keys, values in [layer.states]
        ]


def _write(layer: SlotLayer, slot: int, pair: tuple[Tensor, Tensor], length: int) -> None:
    """Writes the first `length` tokens of a row into a slot, up to the last column in use."""
    for states, row in zip(layer.states, pair, strict=True):
        states[slot, :, layer.end - length : layer.end] = row[:, :length]


@dataclass(slots=True)
class _Entry:
    ids: npt.NDArray[np.int32]
    cache: RowCache
    blocks: set[int]
    """Hashes that still refer to the entry."""


class PrefixStore:
    """Prefix cache of rows, with which later requests with a common prefix run the model only on the rest.

    An episode's next turn continues its last one, attempts at a question share its prompt, and all prompts share
    instructions. Rows are looked up by hashes of their prefixes of whole blocks, then compared token by token; a newer
    row replaces older ones for common prefixes.

    Args:
        max_tokens: Maximum number of tokens kept; beyond it the least recently used row is dropped. 0 keeps nothing.
    """

    BLOCK = 16
    """Number of tokens per block, the shortest common prefix that is detected."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._owner: dict[int, int] = {}
        """Key of the entry that contains a prefix of whole blocks, by the prefix's hash."""
        self._added = 0
        self.tokens = 0
        """Current number of cached tokens."""

    def longest(self, ids: npt.NDArray[np.int32]) -> tuple[int, RowCache | None]:
        """Returns the length of the longest common prefix of a request (T,) with a row, and the row's cache.

        The length is at most T - 1, because the last token's logits are needed; (0, None) if there is no common prefix.
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
            if (key := self._owner.get(block)) is not None:
                old = self._entries[key]
                old.blocks.discard(block)
                if not old.blocks:
                    self._drop(key)
            self._owner[block] = self._added
        self._entries[self._added] = _Entry(ids, cache, blocks)
        self.tokens += len(ids)
        while self.tokens > self._max_tokens:
            self._drop(next(iter(self._entries)))

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

    def _drop(self, key: int) -> None:
        entry = self._entries.pop(key)
        self.tokens -= len(entry.ids)
        for block in entry.blocks:
            del self._owner[block]
