"""Seconds to transfer weights from one process to another, through a folder and by torch's gloo back end."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from searchgym.corpora.files import sha256_file

PIECE: Final = 64
"""MiB of one tensor."""


def transfers(mib: int) -> list[dict[str, Any]]:
    """Measures each way once and returns a row for each.

    Args:
        mib: MiB of weights, in tensors of at most `PIECE` MiB, in bfloat16.
    """
    state = tensors(mib)
    parts = through_folder(state)
    parts["gloo"] = by_gloo(mib)
    parts["folder"] = sum(parts[name] for name in ("written", "hashed", "read"))
    return [
        {"by": name, "mib": mib, "seconds": round(seconds, 3), "mib_per_s": round(mib / seconds, 1)}
        for name, seconds in parts.items()
    ]


def tensors(mib: int) -> dict[str, torch.Tensor]:
    """Returns tensors of ones, `mib` MiB of them in bfloat16."""
    sizes = [PIECE] * (mib // PIECE) + [mib % PIECE] * (mib % PIECE > 0)
    return {f"weight {n}": torch.ones(size << 19, dtype=torch.bfloat16) for n, size in enumerate(sizes)}


def through_folder(state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Returns the seconds to write tensors to a folder on disk, to hash the file, and to read it."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        times = [time.perf_counter()]
        save_file(state, file)
        times.append(time.perf_counter())
        sha256_file(file)
        times.append(time.perf_counter())
        if sum(int(tensor.sum(dtype=torch.float64)) for tensor in load_file(file).values()) != sum(
            tensor.numel() for tensor in state.values()
        ):
            raise RuntimeError("the weights that were read are not those written")
        times.append(time.perf_counter())
    return dict(zip(("written", "hashed", "read"), (b - a for a, b in itertools.pairwise(times)), strict=True))


def by_gloo(mib: int) -> float:
    """Returns the seconds to broadcast tensors from one process to another over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, port, mib, queue)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("a rank ended with an error, which is above")
    return float(max(queue.get() for _ in ranks))


def _rank(rank: int, port: int, mib: int, queue: Any) -> None:
    """Sends or receives every tensor and reports the seconds."""
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", where, timedelta(seconds=60), world_size=2, rank=rank)
    state = tensors(mib)
    if rank:
        for tensor in state.values():
            tensor.zero_()
    dist.barrier()
    started = time.perf_counter()
    for tensor in state.values():
        dist.broadcast(tensor, 0)
    seconds = time.perf_counter() - started
    if any(not bool((tensor == 1).all()) for tensor in state.values()):
        raise RuntimeError("the weights that arrived are not those sent")
    queue.put(seconds)
    dist.destroy_process_group()
