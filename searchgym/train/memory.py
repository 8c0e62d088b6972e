"""Peak memory of a phase of a training step."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import Final

import torch

GIB: Final = 2**30
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")


def uses_gpu() -> bool:
    """Returns whether this process uses a GPU; an available one may be left to engines and ranks in other processes."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def reset_peak() -> None:
    """Resets the peak-memory counter (Linux, CUDA)."""
    if uses_gpu():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5", encoding="ascii")


def peak_gib() -> float:
    """Returns the peak memory since `reset_peak`, in GiB.

    Of a GPU's allocations where this process uses one (the GPU with most), else of this process's resident memory:
    since the process began, where the system cannot reset it.
    """
    if uses_gpu():
        return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())) / GIB
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / GIB if sys.platform == "darwin" else most / 2**20
