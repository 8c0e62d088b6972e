"""Keys and values of running rows, and attention over them. Used by `transformers_sampler` alone.

Shapes: B slots of a batch, H heads of keys and values, W columns in use, T tokens of one row, D width of a head. All
rows end at the same column, so that a step writes one column and a window of the last columns is one of the last
tokens; the columns in front of shorter rows are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


class SlotLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer; slots and columns are allocated ahead, so that hardly a step copies anything."""

    AHEAD = 64
    """Columns allocated beyond what is needed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        """Slots in use: the first ones."""
        self.first = self.end = 0
        """Columns in use: from the first one to before the end."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes room of no column, of the shape, type and place of the first states."""
        self.dtype, self.device, self.count = key_states.dtype, key_states.device, len(key_states)
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
            All keys and values in use, (B, H, W, D) each.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        if self.end + new > self.states[0].shape[2]:
            self.keys, self.values = (
                _widened(states[:, :, self.first : self.end], self.end - self.first + new + self.AHEAD)
                for states in self.states
            )
            self.first, self.end = 0, self.end - self.first
        keys, values = (states[: self.count] for states in self.states)
        keys[:, :, self.end : self.end + new] = key_states
        values[:, :, self.end : self.end + new] = value_states
        self.end += new
        return keys[:, :, self.first : self.end], values[:, :, self.first : self.end]

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (all slots, H, all columns, D) each."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Returns the columns in use."""
        return self.end - self.first


def _widened(states: Tensor, columns: int) -> Tensor:
    """Returns (B, H, columns, D) that begins with the given states.

    The rest is 0, not left unset: a row may enter a slot that was empty, and masked columns still take part as 0 times
    their value.
    """
    wide = states.new_zeros((*states.shape[:2], columns, states.shape[3]))
    wide[:, :, : states.shape[2]] = states
    return wide


class SlotCache(Cache):
    """A cache whose first slots hold a row each; rows enter behind the last one and leave while it runs.

    Args:
        layers: Layers of the model.
    """

    def __init__(self, layers: int) -> None:
        self.slots = [SlotLayer() for _ in range(layers)]
        super().__init__(layers=list(self.slots))

    @property
    def end(self) -> int:
        """The column after the last one in use."""
        return self.slots[0].end

    def add(self, rows: Sequence[RowCache | None], lengths: Sequence[int], present: int = 0) -> None:
        """Adds rows behind those that are there.

        Args:
            rows: None: nothing of it has been seen, its length is 0.
            lengths: How many tokens of each to take.
            present: Most tokens of a row that is there.
        """
        row = next((row for row in rows if row is not None), None)
        for number, layer in enumerate(self.slots):
            if row is not None:
                self._make_room(layer, row[number], layer.count + len(rows), max(lengths), present)
            for own, length in zip(rows, lengths, strict=True):
                if own is not None:
                    _write(layer, layer.count, own[number], length)
                layer.count += layer.is_initialized

    @staticmethod
    def _make_room(layer: SlotLayer, like: tuple[Tensor, Tensor], count: int, length: int, present: int) -> None:
        """Has a layer hold so many slots, and rows so long, in the columns in use."""
        if layer.is_initialized and count <= len(layer.states[0]) and length <= layer.end:
            return
        # A step more than needed: rows come one by one, and each is longer than the last time. Zeros: see `_widened`.
        spare = layer.AHEAD * 4 if layer.is_initialized else 0
        end, slots = max(length, present) + spare, count + (count // 4 if layer.is_initialized else 0)
        old = layer.states if layer.is_initialized else None
        made = []
        for which in (0, 1):
            heads, _, width = like[which].shape
            states = like[which].new_zeros((slots, heads, end + layer.AHEAD, width))
            if old is not None:
                kept = old[which][: layer.count, :, layer.end - present : layer.end]
                states[: layer.count, :, end - present : end] = kept
            made.append(states)
        if not layer.is_initialized:
            layer.lazy_initialization(*made)
            layer.count = 0
        layer.keys, layer.values = made
        layer.first, layer.end = end - max(length, present), end

    def remove(self, slot: int, last_length: int) -> None:
        """Takes a row out; the last one, of so many tokens, takes its slot."""
        for layer in self.slots:
            layer.count -= 1
            if slot < layer.count:
                keys, values = (s[layer.count, :, layer.end - last_length : layer.end] for s in layer.states)
                _write(layer, slot, (keys, values), last_length)

    def trim(self, columns: int) -> None:
        """Leaves only the last columns in use."""
        for layer in self.slots:
            layer.first = layer.end - columns

    def row(self, slot: int, length: int) -> RowCache:
        """Returns a copy of a slot's last `length` columns."""
        return [
            (
                keys[slot, :, layer.end - length : layer.end].clone(),
                values[slot, :, layer.end - length : layer.end].clone(),
            )
            for layer in self.slots
            for keys, values in [layer.states]
        ]


def _write(layer: SlotLayer, slot: int, pair: tuple[Tensor, Tensor], length: int) -> None:
    """Writes the first `length` tokens of a row into a slot, up to the last column in use."""
    for states, own in zip(layer.states, pair, strict=True):
        states[slot, :, layer.end - length : layer.end] = own[:, :length]
