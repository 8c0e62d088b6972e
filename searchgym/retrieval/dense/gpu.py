"""FAISS indexes on GPUs: what is checked before, and how an index is copied there.

FAISS for GPUs is the package ``faiss-gpu`` of FAISS's authors, built for CUDA 12: it brings the libraries of that
version, which run on newer drivers too, and beside a torch for CUDA 13.
"""

from __future__ import annotations

from typing import Any, Final

import faiss

from searchgym.errors import UsageError
from searchgym.packages import install_command
from searchgym.retrieval.kinds.dense import DenseCard

_FAISS: Any = faiss  # untyped, for names that the type stubs lack

MOST_HITS: Final = 2048
"""Largest k, and largest number of inverted lists per query, that FAISS supports on a GPU."""


def check_gpu(card: DenseCard) -> None:
    """Raises a UsageError if a card's device is unknown, not available, or unsupported for its index."""
    card.check_device()
    if card.device == "cpu":
        return
    if not hasattr(_FAISS, "StandardGpuResources"):
        raise UsageError(
            f"device {card.device}: the FAISS that is installed has no GPU support: pip uninstall faiss-cpu, then "
            f"{install_command('gpu')} (the package faiss-gpu, for drivers of CUDA 12 and newer)"
        )
    gpus = _FAISS.get_num_gpus()  # 0 without a driver
    if int(card.device.partition(":")[2] or 0) >= gpus:
        raise UsageError(f"device {card.device}: FAISS finds {gpus} GPUs here; see nvidia-smi and CUDA_VISIBLE_DEVICES")


def copy_to_gpus(index: Any, card: DenseCard) -> Any:
    """Returns a copy of an index on the GPUs of a card: one on each, or one over all with `DenseCard.shard`.

    Args:
        index: Index in main memory, or mapped from a file; it may be freed afterwards.
        card: Card whose device is not ``cpu``.

    Raises:
        UsageError: The index does not fit, or FAISS cannot search it on a GPU; its reason is in the message.
    """
    gpus = None if card.device == "cuda" else [int(card.device.removeprefix("cuda:"))]
    if card.index == "ivf-sq8" and index.nprobe > MOST_HITS:
        raise UsageError(
            f"nprobe is {index.nprobe}: FAISS searches at most {MOST_HITS} lists on a GPU; lower it, or set device to "
            "cpu"
        )
    options = _FAISS.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = card.shard, card.float16 and card.index == "flat"
    options.use_cuvs = False  # builds with cuVS would use it, which has no ivf-sq8
    try:
        return _FAISS.index_cpu_to_gpus_list(index, options, gpus)
    except (RuntimeError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        size = card.vector_bytes(index.ntotal) / (2**31 if options.useFloat16 else 2**30)
        raise UsageError(
            f"device {card.device}: FAISS cannot put {index.ntotal} vectors there ({size:.1f} GiB): {reason:.300}; set "
            "float16 (flat), shard (several GPUs), index to ivf-sq8, or device to cpu"
        ) from error
