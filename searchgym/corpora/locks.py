"""Locks on folders that are written, against other processes and against links that lead out of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from searchgym.errors import RunExistsError, UsageError


@contextmanager
def lock_folder(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Locks a folder against all other processes until the block ends; makes the folder if needed.

    The lock is an operating system lock on the file ``.lock``: it ends with the process, however that ends. The block
    may rename the folder if it removes ``.lock`` afterwards.

    Args:
        folder: Folder to lock.
        wait: Seconds to wait for another process to release the lock.

    Raises:
        RunExistsError: Another process holds the lock.
        UsageError: The folder cannot be made or written, or holds a link that leads out of it.
    """
    _refuse_links(folder)
    end = time.monotonic() + wait
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() >= end:
            raise RunExistsError(f"{folder} is in use by another process: wait for it or choose another")
        time.sleep(0.1)
    with lock:
        yield


def _try_lock(folder: Path) -> BinaryIO | None:
    """Returns the open, locked file ``.lock`` of a folder, or None if another process holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab")
    except FileNotFoundError:  # the process that held the lock renamed the folder between the two lines
        return None
    except OSError as error:
        raise UsageError(f"{folder} cannot be made a folder to write to: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, the folder may have been renamed and made again: then the lock is on a file that
        # no other process will look at.
        if os.fstat(lock.fileno()).st_ino == (folder / ".lock").stat().st_ino:
            return lock
    except OSError:  # another process holds the lock, or has just renamed the folder
        pass
    lock.close()
    return None


def _refuse_links(folder: Path) -> None:
    """Refuses a folder with symbolic links that lead out of it: files elsewhere would be overwritten through them."""
    inside = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if not path.is_symlink():
                continue
            try:
                target = path.resolve()
            except (OSError, RuntimeError):
                raise UsageError(f"{path} is a link that leads to itself: remove it") from None
            if not target.is_relative_to(inside):
                raise UsageError(f"{path} is a link to {target}, outside of the folder to write to: remove it")
