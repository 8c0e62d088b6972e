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
    """Keys and values of one layer; columns are allocated ahead, so that a step copies nothing."""

    AHEAD = 64
    """Columns allocated beyond what is needed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first = self.end = 0
        """Columns in use: from the first one to before the end."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes room of no column, of the shape, type and place of the first states."""
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
        keys, values = self.states
        keys[:, :, self.end : self.end + new] = key_states
        values[:, :, self.end : self.end + new] = value_states
        self.end += new
        return keys[:, :, self.first : self.end], values[:, :, self.first : self.end]

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (B, H, all columns, D) each."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Returns the columns in use."""
        return self.end - self.first

    def arrange(self, sources: Sequence[int | tuple[Tensor, Tensor] | None], lengths: Sequence[int], end: int) -> None:
        """Lays all slots out anew; see `SlotCache.arrange`."""
        pair = next((source for source in sources if isinstance(source, tuple)), None)
        like = self.states if self.is_initialized else pair
        assert like is not None
        made = []
        for which in (0, 1):
            heads, width = like[which].shape[-3], like[which].shape[-1]
            # Zeros, not left unset: a masked column still takes part as 0 times its value, and must be finite.
            states = like[which].new_zeros((len(sources), heads, end + self.AHEAD, width))
            for at, (source, length) in enumerate(zip(sources, lengths, strict=True)):
                if isinstance(source, tuple):
                    states[at, :, end - length : end] = source[which][:, :length]
                elif source is not None:
                    states[at, :, end - length : end] = like[which][source, :, self.end - length : self.end]
            made.append(states)
        if not self.is_initialized:
            self.lazy_initialization(*made)
        self.keys, self.values = made
        self.first, self.end = 0, end


def _widened(states: Tensor, columns: int) -> Tensor:
    """Returns (B, H, columns, D) that begins with the given states; the rest is not set."""
    wide = states.new_empty((*states.shape[:2], columns, states.shape[3]))
    wide[:, :, : states.shape[2]] = states
    return wide


class SlotCache(Cache):
    """A cache whose slots rows enter and leave while it runs.

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

    def arrange(self, sources: Sequence[int | RowCache | None], lengths: Sequence[int]) -> None:
        """Lays all slots out anew.

        Args:
            sources: What goes into each slot: a row that is in this cache, by the number of its slot; a row from
                elsewhere; None: nothing.
            lengths: Tokens of each, 0 for nothing.
        """
        if end := max(lengths):
            for number, layer in enumerate(self.slots):
                own = [source if source is None or isinstance(source, int) else source[number] for source in sources]
                layer.arrange(own, lengths, end)

    def place(self, slot: int, row: RowCache, length: int) -> None:
        """Writes the first `length` tokens of a row, at most `end`, into a slot."""
        for layer, pair in zip(self.slots, row, strict=True):
            for states, own in zip(layer.states, pair, strict=True):
                states[slot, :, layer.end - length : layer.end] = own[:, :length]

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
