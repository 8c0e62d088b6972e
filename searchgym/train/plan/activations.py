"""Bytes of activations that a layer keeps for the backward pass.

The numbers are what torch keeps of a Qwen2 or Llama layer (`torch.autograd.graph.saved_tensors_hooks`; a test counts
again): the inputs of norms, their scaled values, inputs of matrix products (once for each product under autocast),
queries, keys, values, the output of attention, and the MLP's gate, activation, other half and product.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from searchgym.train.plan.shapes import Shape
from searchgym.train.recipe.options import Checkpointing

Numbers = Literal["float32", "bfloat16", "mixed"]
"""Types of numbers of a layer: of its weights and products, or float32 weights with bfloat16 products."""


class LayerBytes(NamedTuple):
    """Bytes per token and layer, for each unit of a width."""

    hidden: int
    """For each unit of the model's width."""
    kv: int
    """For each unit of the width of keys."""
    intermediate: int
    """For each unit of the MLP's width."""


ALL: Final[dict[tuple[Numbers, bool], LayerBytes]] = {
    ("float32", False): LayerBytes(32, 8, 16),
    ("bfloat16", False): LayerBytes(20, 4, 8),
    ("mixed", False): LayerBytes(30, 4, 8),
    ("float32", True): LayerBytes(24, 8, 16),
    ("bfloat16", True): LayerBytes(36, 4, 10),
    ("mixed", True): LayerBytes(24, 4, 8),
}
"""Bytes without checkpointing, by number types and whether an adapter is trained: frozen norms keep no scaled values,
and an adapter in float32 keeps its inputs in float32."""
SELECTIVE: Final[dict[Numbers, LayerBytes]] = {
    "float32": LayerBytes(20, 8, 8),
    "bfloat16": LayerBytes(10, 4, 4),
    "mixed": LayerBytes(12, 4, 4),
}
"""Bytes of a layer's input and of the results of its products: queries, keys and values, attention and its matrix, the
two halves of the MLP and its output."""
FULL: Final[dict[Numbers, LayerBytes]] = {
    "float32": LayerBytes(4, 0, 0),
    "bfloat16": LayerBytes(2, 0, 0),
    "mixed": LayerBytes(4, 0, 0),
}
"""Bytes of a layer's input."""


def numbers_of(dtype: str, autocast: str | None) -> Numbers:
    """Returns the types of numbers of a learner with weights of a type."""
    if dtype == "bfloat16":
        return "bfloat16"
    return "mixed" if autocast == "bfloat16" else "float32"


def activation_bytes(shape: Shape, numbers: Numbers, recomputed: Checkpointing, adapted: bool) -> int:
    """Returns the bytes of activations per token that the backward pass needs, of all layers.

    Args:
        shape: Sizes of the model.
        numbers: Types of numbers.
        recomputed: What the backward pass computes again; if anything, one layer is whole at a time.
        adapted: True if an adapter is trained.
    """

    def layer(sizes: LayerBytes) -> int:
        return sizes.hidden * shape.hidden + sizes.kv * shape.kv_width + sizes.intermediate * shape.intermediate

    whole = layer(ALL[numbers, adapted])
    if recomputed == "none":
        return shape.layers * whole
    return shape.layers * layer((SELECTIVE if recomputed == "selective" else FULL)[numbers]) + whole
