"""The interface between index folders and back ends, which build a part from a corpus and load it for searching.

A part is one back end's folder inside an index folder. Each back end is a module with the three functions of
`BackEnd`. It is imported only when a card asks for it, so that its libraries are needed only then.
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


class BackEnd(Protocol):
    """Interface of a back end's module."""

    def needs(self, card: Any, passages: int, text: int) -> Needs:
        """Returns the memory and disk space of a build.

        Args:
            card: Card of the part.
            passages: Number of passages.
            text: Bytes of their titles and texts.
        """
        ...

    def builder(self, card: Any, folder: Path, shards: Path, progress: Progress) -> Builder:
        """Returns the builder of a part.

        Args:
            card: Card of the part.
            folder: Existing folder that receives the part.
            shards: Existing folder for intermediate files.
            progress: Called as a stage goes on.
        """
        ...

    def load(
        self, card: Any, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
    ) -> CorpusRetriever:
        """Returns the retriever over a part whose files were checked against the manifest.

        Args:
            card: Card to search by; `cards.same_part` holds for it and the card that the part was built for.
            folder: Folder of the part.
            facts: Result of `Builder.finish`.
            passages: All passages of the index folder.
            sha256: sha256 of the corpus.
            progress: Called as a slow stage goes on.

        Raises:
            IndexMismatchError: The part does not match its facts, the passages or this version of the code.
        """
        ...


def back_end(card: PartCard) -> BackEnd:
    """Returns the module of the back end that a card names.

    Raises:
        UsageError: The libraries of the back end are not installed; the message names the command.
    """
    return cast(BackEnd, importlib.import_module(f"{__package__}.{_MODULES[card.kind]}"))


def quiet(stage: str, done: int, whole: int) -> None:
    """Ignores progress; the default callback."""
