"""Downloads the corpus that a card describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from searchgym.corpora.files import download, sha256_file
from searchgym.corpora.hub import HubSource, hub_file
from searchgym.errors import DataMissingError, RunExistsError, UsageError
from searchgym.options.cards import CorpusCard, data_file

Progress = Callable[[int, int | None], None]
"""Callback of a download: called with the bytes done so far and the bytes expected (None if unknown)."""


def get_corpus(
    card: CorpusCard, folder: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Downloads a corpus file into a folder and checks it against its card.

    Args:
        card: Corpus card, with the file's name, its address and (where known) its sha256.
        folder: Folder that receives the file, under the file name of the card.
        overwrite: Whether to replace an existing file.
        progress: Called as the download goes on.

    Returns:
        ``path``, ``bytes``, ``sha256``, and ``checked``: whether the file was checked against the card's sha256.

    Raises:
        CardError: The card's file is not the plain name of a file.
        UsageError: The corpus ships with the package.
        RunExistsError: The file exists and `overwrite` is False.
        DataMissingError: The file cannot be downloaded; the message names the address for a manual download.
        DataError: The file's sha256 is not the card's; nothing is kept.
    """
    if card.bundled:
        raise UsageError(f"corpus {card.name!r} ships with the package: nothing to get")
    path = data_file(folder, card.file)
    if path.exists() and not overwrite:
        raise RunExistsError(f"{path} is there already: --overwrite downloads it again")
    download(_address(card, path), path, sha256=card.sha256, progress=progress)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": sha256_file(path),
        "checked": card.sha256 is not None,
    }


def _address(card: CorpusCard, path: Path) -> str:
    """Returns the URL of a card's file; a file on the hub is downloaded into the hub's cache first."""
    if card.url is not None:
        return card.url
    if card.hub is None:
        raise DataMissingError(f"corpus {card.name!r} has no download: get it from {card.source} and put it here", path)
    try:
        return hub_file(HubSource.parse(card.hub)).resolve().as_uri()
    except DataMissingError as error:
        raise DataMissingError(f"{error}; get {card.file} from {card.source} and put it here", path) from error
