"""What the ranks of a learner tell each other: sums of statistics, numbers per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist


class Ranks:
    """The processes that train one model together; by itself, the only one.

    Every rank runs the same code on the same samples and does its share of the micro-batches. What a rank decides must
    follow from numbers that all have: else one waits for ever where another does not.
    """

    rank, world = 0, 1

    def sums(self, own: Mapping[str, float]) -> dict[str, float]:
        """Adds numbers by name over the ranks; of those called ``max_...`` the largest is taken."""
        total: dict[str, float] = {}
        for part in self.gather(dict(own)):
            add(total, part)
        return total

    def gather(self, own: Any) -> list[Any]:
        """Returns what each rank gave, in their order."""
        return [own]

    def barrier(self) -> None:
        """Waits for every rank."""


class ProcessRanks(Ranks):
    """Ranks of torch's process group, which must have been started."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def gather(self, own: Any) -> list[Any]:
        """Returns what each rank gave, in their order: sums over it are the same on every rank, to the bit."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, own)
        return found

    def barrier(self) -> None:
        """Waits for every rank."""
        dist.barrier()


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Adds numbers by name; those called ``max_...`` keep the largest."""
    for name, value in more.items():
        sums[name] = max(sums.get(name, value), value) if name.startswith("max_") else sums.get(name, 0.0) + value


def shares(batches: Sequence[list[int]], ranks: Ranks) -> list[tuple[list[int], bool]]:
    """Returns a rank's share of micro-batches: as many as every other rank has.

    Args:
        batches: Of the whole update, in an order in which neighbours cost about the same.
        ranks: Which one is asked, and how many there are.

    Returns:
        (indices of samples, whether they count): where a rank has nothing left, the first micro-batch's first row
        takes part without counting, since a pass that one rank leaves out stops the others.
    """
    rounds = -(-len(batches) // ranks.world)
    own = [(batches[at], True) for at in range(ranks.rank, len(batches), ranks.world)]
    return own + [(batches[0][:1], False)] * (rounds - len(own))
