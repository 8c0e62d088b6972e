"""Getting a corpus by its card."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from searchgym.cards import CorpusCard
from searchgym.corpora.files import download, sha256_file
from searchgym.errors import DataError, DataMissingError, RunExistsError, UsageError

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
    folder.mkdir(parents=True, exist_ok=True)
    if card.url is not None:
        download(card.url, path, sha256=card.sha256, progress=progress)
    elif card.hub is not None:
        _from_hub(card, card.hub, path)
    else:
        raise DataMissingError(f"corpus {card.name!r} has no download: get it from {card.source} and put it here", path)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": sha256_file(path),
        "checked": card.sha256 is not None,
    }


def _from_hub(card: CorpusCard, hub: str, path: Path) -> None:
    """Fetches one file of a Hugging Face data set and moves it into place once it is checked."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UsageError("downloading from a hub needs `pip install 'searchgym[train]'`") from None
    owner, name, file = hub.removeprefix("hf:").split("/", 2)
    part = path.with_name(path.name + ".hub")
    try:
        got = Path(hf_hub_download(f"{owner}/{name}", file, repo_type="dataset", local_dir=part))
        found = sha256_file(got)
        if card.sha256 is not None and found != card.sha256:
            raise DataError(f"sha256 is {found}, the card of {card.name!r} says {card.sha256}: nothing was kept", path)
        got.replace(path)
    except DataError:
        raise
    except Exception as error:  # huggingface_hub raises many types for "cannot be reached"
        raise DataMissingError(
            f"corpus {card.name!r} could not be downloaded ({type(error).__name__}: {error!s:.200}); get "
            f"{card.file} from {card.source} and put it here",
            path,
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
