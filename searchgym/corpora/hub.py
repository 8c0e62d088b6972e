"""Reads rows and files of data sets on the Hugging Face hub.

A split of a data set is named ``hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT``, one of its files
``hf:OWNER/NAME[@REVISION]/FILE``. A local folder in the hub's layout may replace ``OWNER/NAME`` if its path begins with
``.``, ``/`` or ``~``. Rows are parsed by the same formats as those of files.

Needs the ``datasets`` package (extra ``train``). Questions are downloaded once and then read from
its cache; passages are streamed.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.packages import install_command

PROBE_SECONDS = 5.0
"""Seconds that the hub may take to answer a probe, since its own client would retry for half a minute."""
SPEC = re.compile(
    r"hf:(?P<repo>[./~][^:@]*|[^/:@]+/[^/:@]+)(:(?P<config>[^/:@]+))?(@(?P<revision>[^/]+))?/(?P<target>[^@]+)"
)
"""Matches the name of a split or file; the group ``target`` is the split or the file."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """One split or one file of a data set on the hub."""

    repo: str
    """Data set: ``OWNER/NAME`` on the hub, or a local folder."""
    config: str | None = None
    """Name of the data set's configuration (subset). Default: the data set's default configuration."""
    split: str | None = None
    """Name of the split; None if `file` is given."""
    revision: str | None = None
    """Branch, tag or commit. Default: the newest commit of the main branch."""
    file: str | None = None
    """Path of a file inside the data set; None if `split` is given."""

    def __post_init__(self) -> None:
        if (self.split is None) == (self.file is None):
            raise UsageError(
                f"{self.repo}: name either a split or a file, got split={self.split!r}, file={self.file!r}"
            )
        if self.file is not None and self.config is not None:
            raise UsageError(f"{self.repo}: a file belongs to no configuration, leave {self.config!r} out")

    @classmethod
    def parse(cls, spec: str) -> HubSource:
        """Parses ``hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT`` or ``.../FILE``; a name with a dot is a file.

        Raises:
            UsageError: `spec` has another form.
        """
        match = SPEC.fullmatch(spec)
        if match is None:
            raise UsageError(f"expected hf:OWNER/NAME[:CONFIG][@REVISION]/SPLIT (or /FILE), got {spec!r}")
        repo, config, revision, target = match.group("repo", "config", "revision", "target")
        if "." in target:
            return cls(repo, config, None, revision, target)
        return cls(repo, config, target, revision)

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{config}{revision}/{self.file or self.split}"

    @property
    def folder(self) -> Path | None:
        """Local folder that holds the data set, None if the data set is on the hub."""
        return Path(self.repo).expanduser() if self.repo.startswith((".", "/", "~")) else None


def hub_rows(source: HubSource, streaming: bool) -> Iterator[tuple[int, Any]]:
    """Returns the rows of a split with their 1-based numbers.

    Args:
        source: Name of the split.
        streaming: Whether to stream the rows from the hub; otherwise all are first downloaded into its cache.

    Raises:
        UsageError: ``datasets`` is not installed.
        DataMissingError: The data set does not exist, or the hub cannot be reached and the cache does not hold it.
        DataError: The rows cannot be read (raised during iteration).
    """
    datasets = _import("datasets", source)
    name = str(source.folder or source.repo)
    offline = source.folder is None and not hub_answers()
    before = datasets.config.HF_HUB_OFFLINE
    try:
        if offline and source.revision is not None:
            raise LookupError("the cache does not record its revision")
        datasets.config.HF_HUB_OFFLINE = before or offline  # as the variable HF_HUB_OFFLINE=1 does
        table = datasets.load_dataset(
            name, source.config, split=source.split, revision=source.revision, streaming=streaming
        )
    except Exception as error:  # datasets raises many types, ValueError and RuntimeError among them
        raise _missing(source, error, offline) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    return _numbered(table, source)


def hub_file(source: HubSource) -> Path:
    """Returns the local path of a file of a data set, downloaded into the hub's cache if needed.

    Raises:
        UsageError: `source` names a split, or ``huggingface_hub`` is not installed.
        DataMissingError: The file does not exist, or the hub cannot be reached and the cache does not hold the file.
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
    except Exception as error:  # the hub's client raises exceptions of many types
        raise _missing(source, error, offline) from error


def _numbered(table: Iterable[Any], source: HubSource) -> Iterator[tuple[int, Any]]:
    """Yields the rows of a table with their 1-based numbers."""
    number = 0
    try:
        for number, row in enumerate(table, start=1):
            yield number, row
    except Exception as error:  # each storage format raises its own types when a stream ends early
        reason = f"reading stopped after row {number} ({type(error).__name__}: {error!s:.200})"
        raise DataError(reason, source) from error


def named_folder(model: str) -> Path | None:
    """Returns the folder that a card's model names, or None if the model is on the hub.

    The path of a folder begins with ``.``, ``/`` or ``~``, or has two separators. So a folder that happens to be in the
    working folder, which may be somebody else's, never replaces a model of the hub.

    Raises:
        DataMissingError: The folder does not exist.
        UsageError: The model is on the hub, but the libraries would load the local folder of the same name instead.
    """
    folder = Path(model).expanduser()
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        if not folder.is_dir():
            raise DataMissingError("no such folder: name one with a model in Hugging Face format", model)
        return folder
    if folder.exists():
        raise UsageError(
            f"{model} names a model on the hub, but a folder here has the same name: write ./{model} in "
            "the card to load the folder, or run in another folder"
        )
    return None


def hub_answers() -> bool:
    """Returns whether the hub answers a request within `PROBE_SECONDS`. Needs ``huggingface_hub``."""
    hub = importlib.import_module("huggingface_hub")
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception:  # any failure means that the hub cannot be reached
        return False
    return True


def _import(module: str, source: HubSource) -> ModuleType:
    """Imports a package of the extra ``train``; raises a UsageError with the install command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{source} is a Hugging Face data set: it needs {install_command('train')}") from None


def _missing(source: HubSource, error: Exception, offline: bool) -> DataMissingError:
    """Returns the error for a data set that cannot be loaded."""
    why = "the hub cannot be reached, and in its cache: " if offline else ""
    return DataMissingError(f"the data set could not be loaded ({why}{type(error).__name__}: {error!s:.300})", source)
