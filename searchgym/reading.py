"""Reads files of somebody else's: regular files alone, and no more bytes than a limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading: a pipe would wait for a writer, and a device has no end.

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
        ValueError: The file has more than `limit` bytes, of which no more were read.
    """
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"more than {limit:,} bytes")
    return content
