"""What the cards of back ends and the builder of index folders hand each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from searchgym.corpora.store import PassageStore
from searchgym.records import Passage

Progress = Callable[[str, int, int], None]
"""Callback that gets the name of a stage, the work done and the total work (0 if unknown), both mostly in passages."""


class Needs(NamedTuple):
    """Upper estimate of the memory and disk space that a build takes."""

    memory: int
    """Bytes of memory that the build takes."""
    disk: int
    """Bytes of disk space during the build; the finished part takes less."""


class Builder(Protocol):
    """Builder of one part of an index folder, shard by shard. A resumed build may add a shard a second time."""

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Processes one shard of the corpus and writes the result to the folder for shards.

        Args:
            number: Number of the shard, from 0. The result of an earlier attempt at this shard is replaced.
            start: Position of the shard's first passage in the corpus.
            passages: All passages of the shard.
        """
        ...

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Makes the part from its shards.

        Args:
            shards: Number of shards in all.
            passages: All passages of the corpus.

        Returns:
            Facts that loading the part needs, as plain data for the manifest.
        """
        ...


def quiet(stage: str, done: int, whole: int) -> None:
    """Ignores progress; the default callback."""
