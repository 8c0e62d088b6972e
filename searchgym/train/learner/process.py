"""What a training asks of its own process: peak memory by phase, and Ctrl-C held back."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

GIB: Final = 2**30
_holding = False


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
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_gib() -> float:
    """Returns the peak memory since `reset_peak`, in GiB.

    Of a GPU's allocations where this process uses one (the GPU with most), else of this process's resident memory:
    since the process began, where the system cannot reset it.
    """
    if uses_gpu():
        return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())) / GIB
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / GIB if sys.platform == "darwin" else most / 2**20


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Delays the first Ctrl-C until the block has ended; a second one is raised at once.

    Where blocks lie in one another, the outermost one holds. In another thread than the main one, which is where Ctrl-C
    arrives, nothing is held; nor in a program that was told to ignore it (begun by a script with ``&``).
    """
    global _holding
    elsewhere = threading.current_thread() is not threading.main_thread()
    if _holding or elsewhere or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    held = False

    def hold(number: int, frame: object) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    before, _holding = signal.signal(signal.SIGINT, hold), True
    try:
        yield
    finally:
        _holding = False
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
