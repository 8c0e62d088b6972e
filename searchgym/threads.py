"""The number of threads that torch computes with on a CPU: one for small models, unless it was set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

SMALL: Final = 10_000_000
"""Parameters below which a model runs with one thread.

The threads of a small model wait for each other at many short products. With two of them and two free cores it takes
two thirds of the time, but beside a single busy process twice the time (``benchmarks/threads.py``, docs/sampling.md).
"""
SET: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number."""


@dataclass(slots=True)
class _Choice:
    """What was chosen in this process so far."""

    usual: int = 0
    """Number of threads before the first choice."""
    present: int = 0
    """Number of threads since the last one; another means that somebody else has set it."""
    largest: int = 0
    """Parameters of the largest model."""


_choice = _Choice()


def choose_threads(parameters: int) -> None:
    """Chooses the number of threads of this process, which is about to run a model; its largest model decides.

    A number that is not torch's own, because the environment or a call of `torch.set_num_threads` set it, stays.

    Args:
        parameters: Number of the model's parameters.
    """
    import torch

    choice, present = _choice, torch.get_num_threads()
    if not choice.usual:
        # torch takes a thread for each core, or for each two that are one in hardware
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        choice.usual, choice.present = present, present if present in (cores, cores // 2) else 0
    if present != choice.present or any(os.environ.get(name) for name in SET):
        return
    choice.largest = max(choice.largest, parameters)
    choice.present = choice.usual if choice.largest >= SMALL else 1
    torch.set_num_threads(choice.present)
