"""Communication between the ranks of a learner: sums of statistics, numbers per sample, shares of the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist


class Ranks:
    """Group of processes that train one model together; this base class is a group of one.

    Every rank runs the same code on the same samples and does its share of the micro-batches. Every decision must
    follow from numbers that all ranks share: otherwise one rank would wait for ever at a call that another skips.
    """

    rank, world = 0, 1
    """Index of this process, and number of processes."""

    def sums(self, own: Mapping[str, float]) -> dict[str, float]:
        """Sums numbers by name over the ranks; of numbers named ``max_...``, takes the largest instead."""
        total: dict[str, float] = {}
        for of_rank in self.gather(dict(own)):
            add(total, of_rank)
        return total

    def gather(self, own: Any) -> list[Any]:
        """Returns the objects passed by all ranks, in rank order."""
        return [own]

    def barrier(self) -> None:
        """Waits for every rank."""


class ProcessRanks(Ranks):
    """Group of the ranks in torch's process group, which must be initialised."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def gather(self, own: Any) -> list[Any]:
        """Returns the objects passed by all ranks, in rank order, so that sums over them agree bit for bit."""
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, own)
        return gathered

    def barrier(self) -> None:
        """Waits for every rank."""
        dist.barrier()


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Adds `more` to `sums` in place, by name; of numbers named ``max_...``, keeps the larger instead."""
    for name, value in more.items():
        sums[name] = max(sums.get(name, value), value) if name.startswith("max_") else sums.get(name, 0.0) + value


def shares(batches: Sequence[list[int]], ranks: Ranks) -> list[tuple[list[int], bool]]:
    """Returns the micro-batches of this rank; every rank gets the same number.

    Args:
        batches: Micro-batches of the whole update, ordered so that neighbours cost about the same.
        ranks: The group; its `rank` is the one asked about.

    Returns:
        (sample indices, counts) per micro-batch. A rank that runs out repeats the first row of the first micro-batch
        with ``counts`` False, since the other ranks would wait for ever for a pass that one rank skips.
    """
    rounds = -(-len(batches) // ranks.world)
    share = [(batches[at], True) for at in range(ranks.rank, len(batches), ranks.world)]
    return share + [(batches[0][:1], False)] * (rounds - len(share))
