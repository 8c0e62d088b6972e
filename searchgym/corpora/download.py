"""Downloads files, such as the corpus that a card describes."""

from __future__ import annotations

import hashlib
import http.client
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from searchgym.corpora.files import FilePath, replacing, sha256_file
from searchgym.corpora.hub import HubSource, hub_file
from searchgym.errors import DataError, DataMissingError, RunExistsError, UsageError
from searchgym.options.cards import CorpusCard, data_file

Progress = Callable[[int, int | None], None]
"""Callback for progress: called with the bytes downloaded so far and the bytes expected (None if unknown)."""
CHUNK = 1 << 20
"""Number of bytes copied at a time."""
TIMEOUT = 30.0
"""Seconds without data after which a download fails."""


def get_corpus(
    card: CorpusCard, folder: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Downloads a corpus file into a folder and checks it against its card.

    Args:
        card: Corpus card, with the file's name, its address and (where known) its sha256.
        folder: Folder that receives the file, under the file name of the card.
        overwrite: Whether to replace an existing file.
        progress: Called during the download.

    Returns:
        ``path``, ``bytes``, ``sha256``, and ``checked``: whether the file was checked against the card's sha256.

    Raises:
        CardError: The card's file name contains a folder.
        UsageError: The corpus ships with the package.
        RunExistsError: The file exists and `overwrite` is False.
        DataMissingError: The file cannot be downloaded; the message names the address for a manual download.
        DataError: The file's sha256 is not the card's; nothing is kept.
    """
    if card.bundled:
        raise UsageError(f"corpus {card.name!r} ships with the package: nothing to get")
    path = data_file(folder, card.file)
    if path.exists() and not overwrite:
        raise RunExistsError(f"{path} exists already: --overwrite downloads it again")
    url = card.url
    if url is None:
        if card.hub is None:
            reason = f"corpus {card.name!r} has no download: get it from {card.source} and put it here"
            raise DataMissingError(reason, path)
        try:
            url = hub_file(HubSource.parse(card.hub)).resolve().as_uri()  # in the cache of the hub
        except DataMissingError as error:
            raise DataMissingError(f"{error}; get {card.file} from {card.source} and put it here", path) from error
    download(url, path, sha256=card.sha256, progress=progress)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": sha256_file(path),
        "checked": card.sha256 is not None,
    }


def download(url: str, path: FilePath, sha256: str | None = None, progress: Progress | None = None) -> None:
    """Downloads a file, which gets its name only when it is complete and checked.

    Args:
        url: ``http``, ``https`` or ``file`` address.
        path: File to write; the bytes are stored as received.
        sha256: Expected sha256 of the file, in hexadecimal. Default: not checked.
        progress: Called after each `CHUNK` of bytes.

    Raises:
        UsageError: `url` is of another kind, or `path` cannot be written.
        DataMissingError: The file cannot be downloaded; the message gives the reason.
        DataError: The download was cut short, or the file has another sha256.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https", "file"):
        raise UsageError(f"cannot download {url!r}: expected an http, https or file address")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as reply, replacing(Path(path)) as file:
            length = reply.headers.get("Content-Length")
            expected = int(length) if length is not None else None
            digest = hashlib.sha256()
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                if progress is not None:
                    progress(file.tell(), expected)
            actual = digest.hexdigest()
            if expected is not None and file.tell() != expected:
                raise DataError(
                    f"{url} ended after {file.tell()} of {expected} bytes: nothing was kept, try again", path
                )
            if sha256 is not None and actual != sha256.lower():
                raise DataError(f"{url} has sha256 {actual}, expected {sha256.lower()}: nothing was kept", path)
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise DataMissingError(
            f"{url} could not be downloaded ({error}): get it by hand and put it here", path
        ) from error
