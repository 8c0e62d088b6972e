"""Fingerprints of weights: short digests by which two processes compare the weights that they have.

An update of 1e-6 changes log-probs by less than rounding does, but it changes the bits of the weights. A fingerprint is
a SHA-256 over the bits. Tensors of up to `BLOCKS` x `BLOCK` elements are read whole; of larger ones, `BLOCKS` blocks at
equal distances. So a fingerprint sees weights that never arrived or belong to another version. It does not see a fault
in a part of a large tensor between the blocks, nor values that two versions have in common after rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

BLOCK: Final = 512
"""Number of elements in a block of a large tensor."""
BLOCKS: Final = 8
"""Number of blocks of a large tensor."""
DTYPE: Final = " in "
"""Separator of a digest and the number type in which it was computed, in the fingerprint of an adapter."""


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Returns the fingerprint of named tensors; their order has no effect.

    Args:
        tensors: Names and tensors, on any device. A name may occur several times.
    """
    lines = sorted(f"{name} {_digest(tensor)}" for name, tensor in tensors)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def part_of(tensor: Tensor) -> Tensor:
    """Returns the elements of a tensor that a fingerprint reads, (n,); the same for any dtype."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= BLOCKS * BLOCK:
        return flat
    return flat.unfold(0, BLOCK, (flat.numel() - BLOCK) // (BLOCKS - 1))[:BLOCKS].reshape(-1)


def rounded_fingerprint(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> str:
    """Returns the fingerprint of weights after they are rounded to the dtypes of other weights of the same names."""
    return fingerprint((name, part_of(weight).to(like[name].dtype)) for name, weight in state.items())


def adapter_fingerprint(state: Mapping[str, Tensor], gain: float, dtype: str) -> str:
    """Returns the fingerprint of a LoRA adapter as vLLM stores it: rounded, and B multiplied by the adapter's scale.

    vLLM renames and packs the matrices, so their names have no effect, except that A and B are told apart.

    Args:
        state: The adapter's weights by peft's names.
        gain: Scale of the product of the matrices, ``lora_alpha / rank``.
        dtype: Number type of vLLM's adapters, such as ``"bfloat16"``.
    """

    def stored() -> Iterator[tuple[str, Tensor]]:
        for name, weight in state.items():
            part = part_of(weight).cpu().to(getattr(torch, dtype))
            yield ("B", part * gain) if ".lora_B." in name else ("A", part)

    return f"{fingerprint(stored())}{DTYPE}{dtype}"


def loaded_adapter_fingerprint(adapter: Any) -> str:
    """Returns the fingerprint of vLLM's ``LoRAModel``; see `adapter_fingerprint`."""
    matrices, dtypes = list[tuple[str, Tensor]](), set[str]()
    for layer in adapter.loras.values():
        scales = _listed(layer.scaling)
        for a, b, scale in zip(_listed(layer.lora_a), _listed(layer.lora_b), scales, strict=True):
            if a is not None:  # a packed layer may lack a part
                matrices += [("A", part_of(a).cpu()), ("B", part_of(b).cpu() * scale)]
                dtypes.add(str(a.dtype).removeprefix("torch."))
    return f"{fingerprint(matrices)}{DTYPE}{', '.join(sorted(dtypes))}"


def common_fingerprint(fingerprints: Sequence[str | None]) -> str | None:
    """Returns the fingerprint of an engine from those of its processes.

    Returns:
        Their common fingerprint; all of them joined if they differ; None if one is None or there is none.
    """
    if not fingerprints or None in fingerprints:
        return None
    return ", ".join(sorted({str(each) for each in fingerprints}))


def _digest(tensor: Tensor) -> str:
    """Returns the SHA-256 of the bits that are read of a tensor."""
    part = part_of(tensor).contiguous().cpu()
    return hashlib.sha256(part.view(torch.uint8).numpy().data).hexdigest()


def _listed(values: Any) -> list[Any]:
    """Returns the parts of a packed layer, or the only part of another layer."""
    return list(values) if isinstance(values, list | tuple) else [values]
