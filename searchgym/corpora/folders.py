"""Folders: SearchGym's home, package files, output folders that appear only when complete, caches and locks."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from searchgym.errors import RunExistsError, UsageError

RUN: Final = "run.json"
"""Name of the file in an evaluation's folder that describes the run."""
EPISODES: Final = "episodes.jsonl"
"""Name of the file in a run folder that holds the episodes."""


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
        raise UsageError(f"{name!r} is not a file of the package")
    return package / name


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yields a hidden folder next to `out` that is renamed to `out` when the block ends, and removed if it raises.

    Args:
        out: Folder to create, along with its parents.

    Raises:
        RunExistsError: `out` exists and is not an empty folder, before the block or after it.
    """
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{secrets.token_hex(4)}.building")
    building.mkdir()
    try:
        yield building
        check_free(out)  # again: another process may have written it meanwhile
        building.replace(out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def cached(folder: Path, make: Callable[[Path], object], wait: float = 3600.0) -> Path:
    """Returns a cached folder; creates it first if it is missing, in one process at a time.

    Args:
        folder: Folder whose name identifies everything that its content depends on.
        make: Writes the folder that it is called with, completely or not at all; see `appearing`.
        wait: Seconds to wait for another process that writes to the same cache.
    """
    if not folder.exists():
        with lock_folder(folder.parent, wait):
            if not folder.exists():  # otherwise another process has created it meanwhile
                make(folder)
    return folder


def check_free(out: Path) -> None:
    """Raises a RunExistsError if a path exists and is not an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunExistsError(f"{out} exists already: choose another --out, or remove it first")


def check_claim(
    out: Path, record: str, what: str, *, resume: bool | None = False, overwrite: bool | None = None
) -> None:
    """Checks that a command may write to a folder, before anything is loaded.

    Args:
        out: Folder to write to.
        record: Name of the file that marks a folder of this kind.
        what: Kind of folder, with its article: "a run".
        resume: Whether to continue the work in the folder; None for a command without this option.
        overwrite: Whether to replace its content; None for a command without this option.

    Raises:
        UsageError: Both options are set, `out` is a file, or there is nothing to resume.
        RunExistsError: The folder holds other files; or it is of this kind, and neither option is set.
    """
    if resume and overwrite:
        raise UsageError("resume and overwrite exclude each other")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: the output must be a folder")
    if not (out / record).exists():
        if out.is_dir() and any(entry.name != ".lock" for entry in out.iterdir()):
            raise RunExistsError(f"{out} holds files but not {what}: choose another --out")
        if resume:
            raise UsageError(f"nothing to resume in {out}: name the folder of {what}, or leave out --resume")
    elif not (resume or overwrite):
        hints = [] if resume is None else ["--resume continues it"]
        hints.append("choose another --out" if overwrite is None else "--overwrite replaces it")
        arguments = "overwrite=True" if resume is None else "resume=True, overwrite=True"
        in_python = "" if overwrite is None else f" (in Python: {arguments})"
        raise RunExistsError(f"{out} holds {what}: {', '.join(hints)}{in_python}")


def lock_folder(folder: Path, wait: float = 0.0) -> BinaryIO:
    """Locks a folder against all other processes; creates the folder if needed.

    The lock is an operating system lock on the file ``.lock``: it ends when the file is closed, and with the process,
    however that ends. The holder may rename the folder if it removes ``.lock`` afterwards.

    Args:
        folder: Folder to lock.
        wait: Seconds to wait for another process to release the lock.

    Returns:
        The open file, which holds the lock until it is closed: use it in a ``with`` statement.

    Raises:
        RunExistsError: Another process holds the lock.
        UsageError: The folder cannot be created or written, or holds a link that leads out of it.
    """
    _refuse_links(folder)
    end = time.monotonic() + wait
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() >= end:
            raise RunExistsError(f"{folder} is in use by another process: wait for it or choose another")
        time.sleep(0.1)
    return lock


def _try_lock(folder: Path) -> BinaryIO | None:
    """Returns the open, locked file ``.lock`` of a folder, or None if another process holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab")
    except FileNotFoundError:  # the process that held the lock renamed the folder between the two lines
        return None
    except OSError as error:
        raise UsageError(f"{folder} cannot be created or written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, the folder may have been renamed and created again: then the lock is on a file
        # that no other process will check.
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
            except (OSError, RuntimeError):  # RuntimeError before Python 3.13, which returns the link
                target = path
            if target.is_symlink():
                raise UsageError(f"{path} is a link that leads to itself: remove it")
            if not target.is_relative_to(inside):
                raise UsageError(f"{path} is a link to {target}, outside of the folder to write to: remove it")
