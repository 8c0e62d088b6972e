"""Bound on the size of a model built from a configuration, derived from the files of its weights."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PretrainedConfig

from searchgym.errors import DataError

MOST_TENSORS: Final = 100_000
"""Maximum number of parameters and buffers of a model without weight files; published models have fewer."""
TENSORS: Final = 4
"""Maximum number of parameters and buffers in memory per tensor in the files, which may be fused or shared."""
SPARE_TENSORS: Final = 1000
"""Number of parameters and buffers allowed in addition."""
NUMBERS: Final = 8
"""Maximum number of values in memory per byte of the files: quantised weights have a few bits each."""
SPARE_NUMBERS: Final = 2**26
"""Number of values allowed in addition, for computed masks and position tables."""


@contextmanager
def bounded(folder: Path | None = None) -> Iterator[None]:
    """Aborts the construction of a model, in this thread and inside the block, if it grows beyond a bound.

    Args:
        folder: Folder with the weights that determine the bound. Default: only the number of parts is bounded.

    Raises:
        _TooLargeError: The model is too large; raised inside the block.
    """
    tensors, numbers = MOST_TENSORS, math.inf
    if folder is not None:
        files = [file for pattern in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(pattern)]
        numbers = NUMBERS * sum(file.stat().st_size for file in files) + SPARE_NUMBERS
        if stored := _tensors(folder):
            tensors = TENSORS * stored + SPARE_TENSORS
    owner, counts = threading.get_ident(), [0, 0]

    def count(module: Any, name: str, value: Any) -> None:
        if value is None or threading.get_ident() != owner:
            return
        counts[0] += 1
        counts[1] += value.numel()
        if counts[0] > tensors or counts[1] > numbers:
            raise _TooLargeError(
                f"its configuration needs at least {counts[0]:,} tensors with {counts[1]:,} numbers, far more than "
                "its weights are: they do not belong together"
            )

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _TooLargeError(Exception):
    """Raised inside the construction of a model that is too large."""


def check_layers(folder: Path, config: PretrainedConfig) -> None:
    """Raises a DataError if a configuration has more layers than the folder's safetensors files have tensors."""
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 0)
    tensors = _tensors(folder)
    if tensors and layers > tensors:
        raise DataError(
            f"num_hidden_layers is {layers:,}, its weights are {tensors:,} tensors: they do not belong together", folder
        )


def _tensors(folder: Path) -> int:
    """Returns the number of tensors in a folder's safetensors files, except damaged files."""
    from safetensors import SafetensorError, safe_open

    tensors = 0
    for file in sorted(folder.glob("*.safetensors")):
        with suppress(SafetensorError, OSError), safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    return tensors
