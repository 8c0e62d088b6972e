"""Questions and passages from Hugging Face data sets, by name.

A data set is named ``hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT``, one file of it ``hf:OWNER/NAME[@REVISION]/FILE``; a
local folder in the hub's layout may stand for ``OWNER/NAME`` if it begins with ``.``, ``/`` or ``~``. Rows are read by
the same formats as files.

The ``datasets`` package is needed (``pip install 'searchgym[train]'``). Questions are downloaded once and come from its
cache afterwards; passages are streamed.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from searchgym.corpora.files import BadLines
from searchgym.corpora.passages import parse_passages, read_passages
from searchgym.corpora.questions import parse_questions, read_questions
from searchgym.corpora.rows import Rows
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.records import Passage, Question

PROBE_SECONDS = 5.0
"""How long the hub may take to answer at all: its own client tries five times, half a minute, before it gives up."""
SPEC = re.compile(
    r"hf:(?P<repo>[./~][^:@]*|[^/:@]+/[^/:@]+)(:(?P<config>[^/:@]+))?(@(?P<revision>[^/]+))?/(?P<part>[^@]+)"
)


@dataclass(frozen=True, slots=True)
class HubSource:
    """One split of a data set, or one file of it."""

    repo: str
    """``OWNER/NAME``, or a local folder."""
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    """Branch, tag or commit; the newest if left out."""
    file: str | None = None
    """Path inside the data set, instead of `split`."""

    def __post_init__(self) -> None:
        if (self.split is None) == (self.file is None):
            raise UsageError(
                f"{self.repo}: name either a split or a file, got split={self.split!r}, file={self.file!r}"
            )
        if self.file is not None and self.config is not None:
            raise UsageError(f"{self.repo}: a file is in no configuration, leave {self.config!r} out")

    @classmethod
    def parse(cls, spec: str) -> HubSource:
        """Reads ``hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT`` or ``.../FILE``; a file is told by the dot in its name.

        Raises:
            UsageError: It is of another form.
        """
        found = SPEC.fullmatch(spec)
        if found is None:
            raise UsageError(f"expected hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT (or /FILE), got {spec!r}")
        repo, config, revision, part = found.group("repo", "config", "revision", "part")
        if "." in part:
            return cls(repo, config, None, revision, part)
        return cls(repo, config, part, revision)

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{config}{revision}/{self.file or self.split}"

    @property
    def folder(self) -> Path | None:
        """The local folder that stands for the data set, None if it is on the hub."""
        return Path(self.repo).expanduser() if self.repo.startswith((".", "/", "~")) else None


def read_hub_questions(
    source: str | HubSource, format: str | None = None, bad: BadLines | None = None
) -> list[Question]:
    """Reads questions of a data set; format and tolerance are as in `read_questions`.

    Raises:
        UsageError: The name is of another form, or ``datasets`` is not installed.
        DataMissingError: No such data set, or neither the hub can be reached nor is it in the cache.
        DataError: As `read_questions`.
    """
    source = HubSource.parse(source) if isinstance(source, str) else source
    bad = BadLines() if bad is None else bad
    if source.file is not None:
        return read_questions(hub_file(source), format, bad)
    return parse_questions(_rows(source, streaming=False), format, bad)


def open_questions(
    source: str | PathLike[str], bad: BadLines | None = None, aliases: str | PathLike[str] | None = None
) -> list[Question]:
    """Reads questions from wherever they are: a file, or ``hf:OWNER/NAME:CONFIG/SPLIT``.

    Args:
        source: A path or the name of a data set.
        bad: Tolerance for bad rows.
        aliases: 2WikiMultihopQA's ``id_aliases.json``; for files only, hub rows carry no entity ids.

    Raises:
        DataMissingError: It is not there.
        DataError: As `read_questions`.
    """
    if str(source).startswith("hf:"):
        return read_hub_questions(str(source), None, bad)
    return read_questions(source, None, bad, aliases)


def read_hub_passages(
    source: str | HubSource, format: str | None = None, bad: BadLines | None = None
) -> Iterator[Passage]:
    """Streams passages of a data set; format and tolerance are as in `read_passages`.

    Raises:
        UsageError: The name is of another form, or ``datasets`` is not installed.
        DataMissingError: No such data set, or neither the hub can be reached nor is it in the cache.
        DataError: As `read_passages`.
    """
    source = HubSource.parse(source) if isinstance(source, str) else source
    bad = BadLines() if bad is None else bad
    if source.file is not None:
        return read_passages(hub_file(source), format, bad)
    return parse_passages(_rows(source, streaming=True), format, bad)


def _rows(source: HubSource, streaming: bool) -> Rows:
    """Returns the rows of a split."""
    datasets = _import("datasets", source)
    name = str(source.folder or source.repo)
    offline = source.folder is None and not hub_answers()
    try:
        if offline and source.revision is not None:
            raise LookupError("the cache does not say which revision it holds")
        with _offline(datasets, offline):
            table = datasets.load_dataset(
                name, source.config, split=source.split, revision=source.revision, streaming=streaming
            )
    except Exception as error:  # datasets raises many types, ValueError and RuntimeError among them
        raise _missing(source, error, offline) from error
    return Rows(str(source), "row", _numbered(table, source))


def hub_file(source: HubSource) -> Path:
    """Returns the local path of a file of a data set, fetched into the hub's cache if need be.

    Raises:
        UsageError: The source names no file, or ``huggingface_hub`` is not installed.
        DataMissingError: Neither the hub can be reached nor is the file in the cache.
    """
    if source.file is None:
        raise UsageError(f"{source} names a split, not a file")
    if source.folder is not None:
        return source.folder / source.file
    hub = _import("huggingface_hub", source)
    offline = not hub_answers()
    try:
        return Path(
            hub.hf_hub_download(
                source.repo, source.file, repo_type="dataset", revision=source.revision, local_files_only=offline
            )
        )
    except Exception as error:  # the hub's client raises many types
        raise _missing(source, error, offline) from error


def _numbered(table: Iterable[Any], source: HubSource) -> Iterator[tuple[int, Any]]:
    """Yields rows with their 1-based numbers."""
    number = 0
    try:
        for number, row in enumerate(table, start=1):
            yield number, row
    except Exception as error:  # a stream can break off in as many ways as there are storage formats
        reason = f"reading broke off after row {number} ({type(error).__name__}: {error!s:.200})"
        raise DataError(reason, source) from error


def hub_answers() -> bool:
    """True if the hub can be reached, whatever it says; settled within seconds. Needs ``huggingface_hub``."""
    hub = importlib.import_module("huggingface_hub")
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception:  # every kind of failure means the same here
        return False
    return True


@contextmanager
def _offline(datasets: ModuleType, offline: bool) -> Iterator[None]:
    """Makes ``datasets`` look into its cache alone, as HF_HUB_OFFLINE=1 does."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _import(module: str, source: HubSource) -> ModuleType:
    """Imports a package of the train extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{source} is a Hugging Face data set: it needs `pip install 'searchgym[train]'`") from None


def _missing(source: HubSource, error: Exception, offline: bool) -> DataMissingError:
    """Returns the error for a data set that cannot be had."""
    why = "the hub cannot be reached, and in its cache: " if offline else ""
    return DataMissingError(f"the data set could not be loaded ({why}{type(error).__name__}: {error!s:.300})", source)
