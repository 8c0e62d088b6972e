"""Counts of operations, bytes and memory of Qwen2.5 shapes, and what they predict for a card.

An update does 6 operations per weight and token: 2 forward, 2 for the gradient of the inputs, 2 for that of the weight.
The head (the output matrix) runs on trained tokens only, so it counts per trained token. The embedding table is looked
up, not multiplied, and does not count. A causal row of L tokens does 6 x layers x width x L operations of attention per
token. With LoRA, frozen weights need no gradient: 4 operations per frozen and 6 per adapter weight. Activations that
are computed again in the backward pass, and the optimizer, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder of the Qwen2 family."""

    width: int
    inner: int
    """Width of the MLP."""
    layers: int
    heads: int
    groups: int
    """Key-value heads."""
    vocabulary: int
    tied: bool = True
    """True if the head is the embedding table."""

    @property
    def kv(self) -> int:
        """Width of keys, and of values, in a layer."""
        return self.width // self.heads * self.groups

    @property
    def head(self) -> int:
        """Parameters of the head."""
        return self.width * self.vocabulary

    @property
    def body(self) -> int:
        """Parameters of all layers and the last norm, without head and embedding table."""
        width, kv = self.width, self.kv
        attention = 2 * width * width + 2 * width * kv + width + 2 * kv
        return self.layers * (attention + 3 * width * self.inner + 2 * width) + width

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.body + self.head * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on all matrices of the layers."""
        width, inner, kv = self.width, self.inner, self.kv
        attention = (width + width) * 2 + (width + kv) * 2
        return self.layers * rank * (attention + 3 * (width + inner))


SHAPES: Final = {
    "mini": Shape(64, 128, 2, 2, 1, 2000),
    "0.5b": Shape(896, 4864, 24, 14, 2, 151936),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151936),
    "7b": Shape(3584, 18944, 28, 28, 4, 152064, tied=False),
}
"""Shapes of Qwen2.5 by name, and a small one."""


def operations(shape: Shape, rows: Sequence[int], trained: int, rank: int = 0) -> float:
    """Returns the floating-point operations of an update; the module has the formula.

    Args:
        shape: Sizes of the model.
        rows: Tokens of each row.
        trained: Tokens whose log-probs are learnt, of all rows.
        rank: Rank of a LoRA adapter; 0 trains all weights.
    """
    per_weight = 4 if rank else 6
    products = sum(rows) * (per_weight * shape.body + 6 * (shape.adapter(rank) if rank else 0))
    return products + trained * per_weight * shape.head + attention(shape, rows)


def old_operations(shape: Shape, rows: Sequence[int]) -> float:
    """Returns the operations as they were counted before: every parameter for every token, as if all were trained."""
    return 6 * shape.parameters * sum(rows) + attention(shape, rows)


def attention(shape: Shape, rows: Sequence[int]) -> float:
    """Returns the operations of causal attention, forward and backward; half of each square."""
    return 6 * shape.layers * shape.width * sum(length * length for length in rows)


# -- predictions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """Speeds of a device."""

    name: str
    product: float
    """Operations per second of bfloat16 products."""
    bandwidth: float
    """Bytes per second from its memory."""


CARDS: Final = {"h200": Card("H200", 785e12, 4.8e12)}
"""Cards: the H200's products as measured on one, its bandwidth as NVIDIA states it."""
SHARES: Final = (0.3, 0.42, 0.52)
"""Shares of the card's products to predict for: the 0.5B's, and the 1.5B's without and with compiled layers."""
PIECE: Final = 4096
"""Trained tokens of a tile of logits on a GPU."""
ENTRIES: Final = 32_768
"""Entries of the vocabulary in such a tile."""


def memory(shape: Shape, tokens: int, rank: int = 0, checkpointing: str = "none") -> dict[str, float]:
    """Returns the GiB of an update in mixed precision, by part; allocator's waste and the optimizer's copies left out.

    Weights in float32 (bfloat16 with an adapter on a frozen base), gradients and two moments in float32 for what is
    trained, bfloat16 copies of float32 matrices. Activations of a token and layer, as torch keeps them: 30 w + 4 kv +
    8 i bytes (w, kv, i: widths of the stream, of keys, of the MLP). With full checkpointing 4 w, with selective also
    the results of products, 12 w + 4 kv + 4 i, and one layer whole. Logits: a tile in float32, three times, and the
    gradient of the head beside the summed one.

    Args:
        shape: Sizes of the model.
        tokens: Tokens of a micro-batch.
        rank: Rank of a LoRA adapter; 0 trains all weights.
        checkpointing: ``none``, ``selective`` (compiled layers too) or ``full``.
    """
    layer = 30 * shape.width + 4 * shape.kv + 8 * shape.inner
    selective = 12 * shape.width + 4 * shape.kv + 4 * shape.inner
    stored = {
        "none": shape.layers * layer,
        "selective": shape.layers * selective + layer,
        "full": shape.layers * 4 * shape.width + layer,
    }[checkpointing]
    trained = shape.adapter(rank) if rank else shape.parameters
    parts = {
        "weights": (2 if rank else 6) * shape.parameters + (6 * trained if rank else 0),
        "gradients": 4 * trained,
        "optimizer": 8 * trained,
        "activations": stored * tokens,
        "logits": 3 * 4 * min(ENTRIES, shape.vocabulary) * min(PIECE, tokens) + 4 * shape.head * (not rank),
    }
    return {name: size / 2**30 for name, size in parts.items()}


def decoding(shape: Shape, card: Card, rows: int, context: int) -> float:
    """Returns the most tokens per second that an engine can sample.

    Each step reads the weights and all keys and values in bfloat16, or is bound by its products.

    Args:
        shape: Sizes of the model.
        card: Speeds of the device.
        rows: Rows that gain a token in each step.
        context: Mean tokens before the sampled one.
    """
    weights, cached = shape.body + shape.head, 2 * shape.layers * shape.kv * context
    seconds = max(2 * (weights + rows * cached) / card.bandwidth, 2 * weights * rows / card.product)
    return rows / seconds


def predictions(card: Card, length: int, tokens: int) -> list[dict[str, Any]]:
    """Returns predicted speeds of updates and sampling, and memory, one row for each shape and way of training.

    Args:
        card: The device.
        length: Tokens of each row, half of them trained.
        tokens: Tokens of a micro-batch.
    """
    rows = []
    ways = (("0.5b", 0, "none"), ("0.5b", 0, "selective"), ("1.5b", 0, "none"), ("1.5b", 0, "selective"))
    for name, rank, checkpointing in (*ways, ("7b", 16, "full")):
        shape = SHAPES[name]
        per_token = operations(shape, [length], length // 2, rank) / length
        parts = memory(shape, tokens, rank, checkpointing)
        rows.append(
            {"shape": name, "way": f"{f'lora {rank}' if rank else 'all weights'}, {checkpointing}"}
            | {"GFLOP/token": per_token / 1e9}
            | {f"tokens/s at {share}": card.product * share / per_token for share in SHARES}
            | {"sampled/s at most": decoding(shape, card, 256, 512)}
            | {f"GiB {part}": size for part, size in parts.items()}
            | {"GiB": sum(parts.values())}
        )
    return rows
