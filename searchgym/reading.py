"""Safe reading of other people's files: only regular files, and only up to a size limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading; refuses pipes, which block without a writer, and devices, which never end.

    Raises:
        OSError: The file cannot be opened, or is a folder, a pipe or a device.
    """
    if Path(path).exists() and not Path(path).is_file():
        reason = "is no regular file and cannot be read: it is a folder, a pipe or a device"
        raise OSError(errno.EINVAL, reason, str(path))
    return Path(path).open("rb")


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Returns the bytes of a file.

    Raises:
        OSError: The file cannot be read; see `open_file`.
        ValueError: The file has more than `limit` bytes; the rest is not read.
    """
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"more than {limit:,} bytes")
    return content


def leads_out(path: Path, folder: Path) -> bool:
    """Returns whether a path is a symbolic link whose target is outside a folder or does not exist.

    Files of a snapshot in the Hugging Face cache link into the same model's ``blobs``, which counts as inside.
    """
    if not path.is_symlink():
        return False
    if folder.parent.name == "snapshots" and (folder.parents[1] / "blobs").is_dir():
        folder = folder.parents[1]
    try:
        return not path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # no target, or a loop
        return True
