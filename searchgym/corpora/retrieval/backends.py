"""What a back end offers to index folders: its own part, built of a corpus by shards and loaded to be searched.

Each back end is a module with the three functions of `BackEnd`. It is imported when a card asks for it, so that only
those who use it need its libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from searchgym.corpora.retrieval.cards import PartCard
from searchgym.corpora.retrieval.retriever import CorpusRetriever
from searchgym.corpora.store import PassageStore
from searchgym.records import Passage

_MODULES: Final = {"bm25": "bm25.backend", "lucene": "lucene.backend", "dense": "dense.backend"}

Progress = Callable[[str, int, int], None]
"""Told of a stage's name, what is done of it, and the whole: passages, or bytes while loading."""


class Needs(NamedTuple):
    """What a build takes at most, in bytes."""

    memory: int
    disk: int
    """While building; what is left afterwards is less."""


class Builder(Protocol):
    """Builds one part. It may be told again of shards that it has done: an interrupted build goes on."""

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Takes a shard: writes what it can know of it below the folder for shards.

        Args:
            number: Of the shard, from 0; what an earlier attempt wrote of this one is replaced.
            start: Position of its first passage.
            passages: All of them.
        """
        ...

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Makes the part of the first so many shards, which are all there are.

        Returns:
            What to know of it to load it: plain data for the manifest.
        """
        ...


class BackEnd(Protocol):
    """The functions of a back end's module."""

    def needs(self, card: Any, passages: int, text: int) -> Needs:
        """Returns what a build takes for so many passages with so many bytes of title and text."""
        ...

    def builder(self, card: Any, folder: Path, shards: Path, progress: Progress) -> Builder:
        """Returns what builds a part into `folder`, with `shards` for what is needed in between; both exist."""
        ...

    def load(
        self, card: Any, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
    ) -> CorpusRetriever:
        """Returns the retriever over a part that was checked against its manifest.

        Args:
            card: How to search; was built for the same, as `cards.same_part` has it.
            folder: The part.
            facts: What `finish` returned.
            passages: All of the index folder.
            sha256: Of the corpus.
            progress: Told of what takes long.

        Raises:
            IndexMismatchError: The part does not fit its facts, the passages or this code.
        """
        ...


def back_end(card: PartCard) -> BackEnd:
    """Returns the module behind a card.

    Raises:
        UsageError: Its libraries are not installed: says what to install.
    """
    return cast(BackEnd, importlib.import_module(f"{__package__}.{_MODULES[card.kind]}"))


def quiet(stage: str, done: int, whole: int) -> None:
    """Progress that nobody watches."""
