"""Retriever cards: base classes of the kinds of retrievers, and how a card is found by name, path, URL or mapping.

A kind is one class in a module of `searchgym.retrieval.kinds`, or of a user's. A `PartCard` names a back end,
which is built from a corpus into a *part*, its folder inside an index folder. Other cards wrap cards (``of``), or need
no corpus: they query a server, call a function, replay a run, or let a language model write the pages.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from typing_extensions import override

from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import CardError, UsageError
from searchgym.named import names_code
from searchgym.options import Kind, Source, find_kind, name_of, plain, read
from searchgym.options.cards import EncoderCard, find_card
from searchgym.options.yaml import read_source
from searchgym.packages import install_command
from searchgym.records import Passage, Question
from searchgym.retrieval.retriever import AnyRetriever, CorpusRetriever, Retriever, corpus_of
from searchgym.retrieval.wrapper import WithCorpus

Progress = Callable[[str, int, int], None]
"""Callback for progress: called with the name of a stage, the work done and the total work (0 if unknown), mostly in
passages."""


class Needs(NamedTuple):
    """Upper estimate of the memory and disk space of a build."""

    memory: int
    """Bytes of memory during the build."""
    disk: int
    """Bytes of disk space during the build; the finished part takes less."""


class Builder(Protocol):
    """Builder of one part of an index folder, shard by shard. A resumed build may add a shard a second time."""

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Processes one shard of the corpus and writes the result to the folder for shards. Default: does nothing.

        Args:
            number: Number of the shard, from 0. The result of an earlier attempt at this shard is replaced.
            start: Position of the shard's first passage in the corpus.
            passages: All passages of the shard.
        """
        return

    def checksum(self, start: int, end: int) -> int:
        """Returns the CRC-32 of what `add` has written of a shard to files that shards share. Default: 0, for none.

        Args:
            start: Position of the shard's first passage in the corpus.
            end: Position after its last passage.
        """
        return 0

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Builds the part from its shards.

        Args:
            shards: Total number of shards.
            passages: All passages of the corpus.

        Returns:
            Facts that loading the part needs, as plain data for the manifest.
        """
        ...


def quiet(stage: str, done: int, whole: int) -> None:
    """Ignores progress; the default callback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverCard(Kind):
    """Describes a retriever: one class per kind, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.retrieval.kinds"
    noun: ClassVar = "kind of retriever"
    loads_code: ClassVar = True
    searches_corpus: ClassVar[bool] = False
    """Whether the retriever itself searches a corpus on this machine."""

    name: str = ""
    """Name of the card."""
    summary: str = ""
    """One-line description of the retriever, for lists of cards."""

    @classmethod
    def short(cls, value: object) -> object:
        """Reads a text as the card of that name, path or URL."""
        return find_retriever(value) if isinstance(value, str) else value

    def open(self, sources: Sources) -> AnyRetriever:
        """Returns the retriever; opens wrapped cards with ``sources.open``. Libraries are imported only here."""
        raise NotImplementedError(f"{type(self).__name__} does not define open")

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return name_of(self)

    @property
    def inner(self) -> list[RetrieverCard]:
        """Wrapped cards: those in the fields of this card."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        several = (value if isinstance(value, (list, tuple)) else [value] for value in values)
        return [card for cards in several for card in cards if isinstance(card, RetrieverCard)]

    @property
    def needs_corpus(self) -> bool:
        """Whether this retriever, or one that it wraps, searches a corpus on this machine."""
        return any(card.searches_corpus for card in self.walk())

    @property
    def grows(self) -> bool:
        """Whether the hits at a training step depend on the number of steps. Default: as for the wrapped cards."""
        return any(card.grows for card in self.inner)

    @property
    def models(self) -> list[EncoderCard | str]:
        """Models that this card itself loads: encoders, and others by name. Default: the encoders in its fields."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return [value for value in values if isinstance(value, EncoderCard)]

    def walk(self) -> Iterator[RetrieverCard]:
        """Yields this card and all cards in it, outer ones first."""
        yield self
        for card in self.inner:
            yield from card.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCard(RetrieverCard):
    """Card of a back end, which is built from a corpus into a part of an index folder and loaded from it."""

    searches_corpus: ClassVar = True
    back_end: ClassVar[str]
    """Module with the functions ``needs``, ``builder`` and ``load``, which take the card and the arguments of the
    methods of those names. It is imported at the first call, so that its libraries are needed only then."""
    at_search: ClassVar[tuple[str, ...]] = ()
    """Fields that affect searching only: two cards that differ only in these share a part."""
    takes: ClassVar[Literal["vectors", "lucene"] | None] = None
    """Files of other tools that `convert_index` can turn into this part: FAISS vectors, or a Lucene index."""
    extra: ClassVar[str] = ""
    """Extra of this package that installs the back end's libraries."""
    slow: ClassVar[bool] = False
    """Whether building a large corpus takes days; if so, the first search does not start a build."""

    @override
    def open(self, sources: Sources) -> AnyRetriever:
        return sources.part(self)

    def built_of(self) -> dict[str, Any]:
        """Returns the fields that the build of the part depends on, as plain data."""
        data: dict[str, Any] = plain(self)
        return {name: value for name, value in data.items() if name not in ("name", "summary", *self.at_search)}

    def search_memory(self, passages: int, gpus: int) -> dict[str, int]:
        """Returns the bytes that a search holds in memory, by device. Default: none, since files are mapped.

        Args:
            passages: Number of passages.
            gpus: Number of GPUs of the machine.

        Raises:
            UsageError: The card searches on a device that the machine lacks.
        """
        return {}

    def needs(self, passages: int, text: int) -> Needs:
        """Returns the memory and disk space of a build.

        Args:
            passages: Number of passages.
            text: Bytes of their titles and texts.
        """
        return cast(Needs, self._module().needs(self, passages, text))

    def builder(self, folder: Path, shards: Path, progress: Progress) -> Builder:
        """Returns the builder of the part.

        Args:
            folder: Existing folder that receives the part.
            shards: Existing folder for intermediate files.
            progress: Called during each stage.

        Raises:
            UsageError: The libraries of the back end are not installed; the message names the command.
        """
        return cast(Builder, self._module().builder(self, folder, shards, progress))

    def load(
        self, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
    ) -> CorpusRetriever:
        """Returns the retriever over a part whose files were checked against the manifest.

        Args:
            folder: Folder of the part, built for a card with the same `built_of`.
            facts: Result of `Builder.finish`.
            passages: All passages of the index folder.
            sha256: sha256 of the corpus.
            progress: Called during slow stages.

        Raises:
            IndexMismatchError: The part does not match its facts, the passages or this version of the code.
            UsageError: The libraries of the back end are not installed; the message names the command.
        """
        return cast(CorpusRetriever, self._module().load(self, folder, facts, passages, sha256, progress))

    def verify(self, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str) -> None:
        """Raises an IndexMismatchError if the files of the part are damaged. Default: no check."""

    def _module(self) -> Any:
        try:
            return importlib.import_module(self.back_end)
        except ImportError as error:
            install = install_command(self.extra)
            raise UsageError(f"a retriever of kind {self.kind} needs another package ({error}): {install}") from error


def _no_corpus(card: PartCard | None = None) -> Any:
    name = "" if card is None else f" {card.name or card.kind!r}"
    raise UsageError(f"the retriever card{name} searches a corpus: name one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Resources with which a card's retriever is opened."""

    part: Callable[[PartCard], CorpusRetriever] = _no_corpus
    """Returns the retriever over the part built for a card. Default: an error."""
    passages: Callable[[], PassageStore] = _no_corpus
    """Returns all passages of the corpus, on disk. Default: an error."""
    corpus_sha256: str | None = None
    """sha256 of that corpus."""
    questions: Sequence[Question] | None = None
    """Questions of the environment that uses the retriever; None for any other use."""

    def open(self, card: RetrieverCard) -> Retriever:
        """Returns the retriever of a card for any use, such as inside another retriever.

        Raises:
            UsageError: The hits depend on the environment's questions, or a corpus is needed and not given.
        """
        opened: Any = card.open(dataclasses.replace(self, questions=None))
        if card.searches_corpus and corpus_of(opened) is None:
            return WithCorpus(opened, self.passages(), self.corpus_sha256)
        return cast(Retriever, opened)

    def open_corpus(self, card: RetrieverCard, folder: Path) -> CorpusRetriever:
        """Returns the retriever of a card over an index in a folder.

        Raises:
            UsageError: The retriever searches elsewhere and needs no index.
        """
        retriever = self.open(card)
        if not isinstance(retriever, CorpusRetriever):
            raise UsageError(f"{folder}: {type(retriever).__name__} searches elsewhere: it needs no index folder")
        return retriever


_READING: ContextVar[tuple[Path, ...]] = ContextVar("reading", default=())
"""Files of the cards that are being read, each of which names the next: a card must not refer to itself."""


def find_retriever(retriever: str | dict[str, Any] | RetrieverCard) -> RetrieverCard:
    """Returns the retriever card for a name, a path, ``module:Class``, a server's URL, a mapping or a card itself.

    Raises:
        CardError: The card cannot be read, its kind is unknown, or one of its fields is not valid.
        UnknownNameError: No card has this name.
    """
    if isinstance(retriever, RetrieverCard):
        return read(type(retriever), plain(retriever, named=True), "retriever")
    if not isinstance(retriever, str):
        return _read(retriever, Source("retriever"))
    if retriever.startswith(("http://", "https://")):
        http: Any = find_kind(RetrieverCard, "http")
        return http(url=retriever)  # type: ignore[no-any-return]
    if names_code(retriever):
        return _read({"kind": retriever}, Source("retriever"))
    path, above = find_card("retrievers", retriever), _READING.get()
    if path.resolve() in above:
        raise CardError(f"{retriever!r:.80}: the card refers to itself")
    reading = _READING.set((*above, path.resolve()))
    try:
        return _read(*read_source(path))
    finally:
        _READING.reset(reading)


def _read(data: object, source: Source) -> RetrieverCard:
    if not isinstance(data, dict):
        raise CardError(f"{source.name}: a retriever card must be keys and values, got {data!r:.80}")
    return read(RetrieverCard, data, source)


def find_encoder(encoder: Any, where: str = "encoder") -> EncoderCard:
    """Returns the encoder card for a name, a path, a mapping or a card itself."""
    return read(EncoderCard, EncoderCard.short(encoder), where)


def parts_of(card: RetrieverCard) -> list[PartCard]:
    """Returns the cards of the parts that an index folder needs for a card, in order, without repeats."""
    parts: list[PartCard] = []
    for part in card.walk():
        if isinstance(part, PartCard) and not any(part.built_of() == other.built_of() for other in parts):
            parts.append(part)
    return parts
