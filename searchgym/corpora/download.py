"""Getting a corpus by its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from searchgym.cards import CorpusCard
from searchgym.corpora.files import download, sha256_file
from searchgym.corpora.hub import HubSource, hub_file
from searchgym.errors import DataMissingError, RunExistsError, UsageError

Progress = Callable[[int, int | None], None]


def get_corpus(
    card: CorpusCard, folder: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Downloads a corpus file into a folder and checks it against its card.

    Args:
        card: Names the file, where it is, and (where known) its sha256 and size.
        folder: Where the file goes, under the card's file name.
        overwrite: Replace a file that is there already.
        progress: Called with (bytes done, bytes in all or None).

    Returns:
        ``path``, ``bytes``, ``sha256``, and ``checked``: whether the card knows the sha256.

    Raises:
        UsageError: The corpus ships with the package.
        RunExistsError: The file is there and `overwrite` was not asked for.
        DataMissingError: It cannot be had; says by which address a person gets it.
        DataError: Another sha256 than the card's; nothing is kept.
    """
    if card.bundled:
        raise UsageError(f"corpus {card.name!r} ships with the package: nothing to get")
    path = folder / card.file
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
    """Returns the URL of a card's file; what comes from a hub is in its cache then."""
    if card.url is not None:
        return card.url
    if card.hub is None:
        raise DataMissingError(f"corpus {card.name!r} has no download: get it from {card.source} and put it here", path)
    try:
        return hub_file(HubSource.parse(card.hub)).resolve().as_uri()
    except DataMissingError as error:
        raise DataMissingError(f"{error}; get {card.file} from {card.source} and put it here", path) from error
