"""Mixed precision: the inputs of matrix products are rounded to bfloat16, everything else is float32.

Learner and sampler use the same rule, so that both round at the same places. The products of the layers have bfloat16
outputs, as torch's autocast computes them. The product with the vocabulary has float32 outputs: rounding logits to
bfloat16 changes them by up to 0.1, which alone would change log-probs by some hundredths of a nat. Embeddings, norms,
the residual stream, sums of products, log-probs and losses are float32.
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


def rounded(values: Tensor) -> Tensor:
    """Rounds values to bfloat16, for `product`: stored as bfloat16 on a GPU, and as float32 on a CPU."""
    low = values.to(torch.bfloat16)
    return low if values.is_cuda else low.float()


def product(left: Tensor, right: Tensor, mixed: bool) -> Tensor:
    """Computes a matrix product; see torch.mm.

    Args:
        left: (n, k) matrix.
        right: (k, m) matrix.
        mixed: If True, the inputs are rounded to bfloat16 where the device has fast products of bfloat16, and summed in
            float32; round them before (`rounded`) to get the same result on every device.

    Returns:
        (n, m) matrix, in float32 if mixed.
    """
    with torch.autocast(left.device.type, enabled=False):
        if not mixed:
            return torch.mm(left, right)
        if left.is_cuda:
            return torch.mm(left.to(torch.bfloat16), right.to(torch.bfloat16), out_dtype=torch.float32)
        # The setting holds for all threads: float32 products of others are rounded too for this moment. Nothing else
        # computes while the learner learns, except where sampling runs ahead, which is not reproducible anyway.
        setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        before, setting.fp32_precision = setting.fp32_precision, "bf16"
        try:
            return torch.mm(left, right)
        finally:
            setting.fp32_precision = before


def gradient_product(left: Tensor, right: Tensor, mixed: bool) -> Tensor:
    """Computes a matrix product of a backward pass, which may be rounded to bfloat16 as autocast rounds all of them.

    On a CPU without matrix units (AMX) this is twice as fast as `product`. Arguments are those of `product`.
    """
    if mixed and not left.is_cuda:
        return torch.mm(left.to(torch.bfloat16), right.to(torch.bfloat16)).float()
    return product(left, right, mixed)


@contextmanager
def mixed_precision(model: Any) -> Iterator[None]:
    """Runs a language model or a token classifier in mixed precision until the block ends.

    The output layer of a language model rounds its inputs; that of a classifier computes in float32.
    """
    head = head_of(model)
    device, classifies = head.weight.device.type, model.get_output_embeddings() is None
    matrix: Tensor | None = None

    def in_float32(hidden: Tensor) -> Tensor:
        nonlocal matrix
        bias = None if getattr(head, "bias", None) is None else head.bias.float()
        with torch.autocast(device, enabled=False):
            if classifies:
                return linear(hidden.float(), head.weight.float(), bias)
            if torch.is_grad_enabled():
                return linear(hidden.to(torch.bfloat16).float(), head.weight.to(torch.bfloat16).float(), bias)
            if matrix is None:  # rounded once for all tokens of a response
                matrix = rounded(head.weight).t()
            logits = product(rounded(hidden).flatten(0, -2), matrix, mixed=head.weight.is_cuda)
            return (logits if bias is None else logits + bias).view(*hidden.shape[:-1], -1)

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
