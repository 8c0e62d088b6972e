"""What the cards of back ends, the builder of index folders and the retrievers over them have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

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


class Passages(Protocol):
    """A sequence of passages, such as a list or a `PassageStore`."""

    def __len__(self) -> int:
        """Returns the number of passages."""
        ...

    def __getitem__(self, position: int, /) -> Passage:
        """Returns the passage at a position."""
        ...

    def __iter__(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        ...


class LocalRetriever:
    """Base class of `CorpusRetriever`s that search in this process; copying one returns the same object.

    Args:
        passages: The indexed passages, by position.
        corpus_sha256: `IndexManifest.corpus_sha256` of the index folder; None if there is none.
    """

    in_process = True  # a search cannot hang: `retrieve` need not watch it from another thread

    def __init__(self, passages: Passages, corpus_sha256: str | None) -> None:
        self._passages, self.corpus_sha256 = passages, corpus_sha256

    def __len__(self) -> int:
        """Returns the number of passages."""
        return len(self._passages)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order."""
        return iter(self._passages)

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, from 0 to len - 1."""
        return self._passages[position]
