"""Mixed precision: matrix products in bfloat16, everything in which rounding accumulates in float32.

Learner and sampler use the same rule, so that both round in the same operations: the matrices of the layers are
bfloat16; embeddings, norms, the residual stream and the product with the vocabulary are float32. Rounding logits to
bfloat16 changes them by up to 0.1, which alone would change log-probs by some hundredths of a nat.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def head_of(model: Any) -> Any:
    """Returns the output layer of a language model or a token classifier."""
    return model.get_output_embeddings() or model.score


def round_matrices(model: Any) -> None:
    """Stores the matrices of a model's linear layers in bfloat16, in place; the output layer keeps its type.

    Mixed precision rounds them to bfloat16 in every product anyway, so outputs do not change; it saves memory and time.
    """
    head = head_of(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.bfloat16)


@contextmanager
def mixed_precision(model: Any) -> Iterator[None]:
    """Runs a language model or a token classifier in mixed precision until the block ends."""
    head = head_of(model)
    device = head.weight.device.type

    def in_float32(hidden: Tensor) -> Tensor:
        bias = None if getattr(head, "bias", None) is None else head.bias.float()
        with torch.autocast(device, enabled=False):
            return linear(hidden.float(), head.weight.float(), bias)

    head.forward = in_float32
    try:
        with torch.autocast(device, torch.bfloat16):
            yield
    finally:
        del head.forward


def emulates_bfloat16() -> bool:
    """Returns True if bfloat16 runs on an x86 CPU without instructions for it."""
    if torch.cuda.is_available() or platform.machine() not in ("x86_64", "AMD64"):
        return False
    features = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return not any(getattr(torch.cpu, name, lambda: True)() for name in features)
