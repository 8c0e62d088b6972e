"""What tells the folders that this user made from those of others: a key in the home folder."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from searchgym.errors import UsageError

MARK: Final = ".own"
"""File that marks a folder made by this user: a keyed digest of its manifest, without meaning for anyone else."""


def home() -> Path:
    """Returns SearchGym's folder for data and cached indexes: ``$SEARCHGYM_HOME`` or ``~/.cache/searchgym``."""
    return Path(os.environ.get("SEARCHGYM_HOME") or Path.home() / ".cache" / "searchgym")


def bundled_file(name: str) -> Path:
    """Returns the path of a file that ships inside the package, given its path relative to it.

    Raises:
        UsageError: The path leads out of the package.
    """
    package = Path(__file__).parent.parent
    if not (package / name).resolve().is_relative_to(package.resolve()):
        raise UsageError(f"{name!r} is no file of the package")
    return package / name


def mark_own(folder: Path, manifest: bytes) -> None:
    """Marks a folder as made by this user; without a writable home folder it stays unmarked."""
    with contextlib.suppress(OSError):
        home().mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            key = os.open(home() / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(key, secrets.token_hex(32).encode())
            os.close(key)
        (folder / MARK).write_text(_digest(manifest), encoding="ascii")


def is_own(folder: Path, manifest: bytes) -> bool:
    """Returns whether this user marked a folder when it had the same manifest."""
    try:
        return hmac.compare_digest((folder / MARK).read_bytes(), _digest(manifest).encode())
    except OSError:
        return False


def _digest(manifest: bytes) -> str:
    """Returns the digest of a manifest by the user's key."""
    key = (home() / "key").read_bytes()
    if len(key) < 32:
        raise OSError("the key is not whole")
    return hmac.new(key, manifest, hashlib.sha256).hexdigest()
