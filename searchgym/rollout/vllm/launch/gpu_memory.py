"""Names the processes that hold a GPU's memory, for an engine that does not start."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

SECONDS: Final = 10.0
"""Maximum seconds for nvidia-smi to answer."""
REMEDY: Final = (
    "end those processes or lower rollout.sampler.gpu_share; if a library reserved the memory in this process, such as "
    "JAX, which takes three quarters of a GPU when it is imported, set XLA_PYTHON_CLIENT_PREALLOCATE=false or "
    "JAX_PLATFORMS=cpu"
)
"""What to do if a GPU has too little free memory."""


def nvidia_smi(query: str) -> list[list[str]]:
    """Returns the rows of a query to nvidia-smi, such as ``--query-gpu=index``; none if it is not there or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def memory_shortage(
    share: float, gpus: Sequence[str], query: Callable[[str], list[list[str]]] = nvidia_smi
) -> str | None:
    """Explains which of an engine's GPUs have less free memory than its share, and which processes hold it.

    Args:
        share: Fraction of each GPU's memory that the engine needs.
        gpus: Indices or UUIDs of the engine's GPUs, as in ``CUDA_VISIBLE_DEVICES``.
        query: Function that asks nvidia-smi.

    Returns:
        A sentence for each such GPU and the remedy; None if every GPU has enough or nvidia-smi does not answer.
    """
    holders = query("--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    short = []
    for row in query("--query-gpu=index,uuid,memory.free,memory.total"):
        if len(row) != 4 or not {row[0], row[1]} & set(gpus) or not (row[2].isdigit() and row[3].isdigit()):
            continue
        index, uuid, free, total = row[0], row[1], int(row[2]) / 1024, int(row[3]) / 1024
        if free >= share * total:
            continue
        needed = f"GPU {index} has {free:.1f} of {total:.1f} GiB free, the engine's share of {share:g} is"
        listed = [_holder(one) for one in holders if len(one) >= 4 and one[0] == uuid]
        by = ", ".join(listed) or "processes that nvidia-smi does not show here, as those outside a container"
        short.append(f"{needed} {share * total:.1f}; the rest is held by {by}")
    return f"{'. '.join(short)}. What to do: {REMEDY}" if short else None


def _holder(row: Sequence[str]) -> str:
    _, number, used, *name = row
    size = f"{int(used) / 1024:.1f} GiB" if used.isdigit() else "an unknown size"
    who = "this process" if number == str(os.getpid()) else f"process {number} ({','.join(name)})"
    return f"{who}: {size}"
