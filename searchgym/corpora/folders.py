"""Folders: the user's, the package's, and those written whole or not at all, once for all, by one run at a time."""

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
"""File of an evaluation's folder that describes the run."""
EPISODES: Final = "episodes.jsonl"
"""File of a run folder that holds its episodes."""


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


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yields a hidden folder beside `out` that is renamed to `out` when the block ends, and removed if it raises.

    Args:
        out: Folder to make; its parents are made too.

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
    """Returns a folder of a cache; makes it first if it is missing, in one process at a time.

    Args:
        folder: Folder whose name says all that its content depends on.
        make: Writes the folder that it is given, whole or not at all; see `appearing`.
        wait: Seconds to wait for another process that writes to the same cache.
    """
    if not folder.exists():
        with lock_folder(folder.parent, wait):
            if not folder.exists():  # else another process has made it meanwhile
                make(folder)
    return folder


def check_free(out: Path) -> None:
    """Raises a RunExistsError if a path exists and is not an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunExistsError(f"{out} is there already: choose another --out, or remove it first")


def check_claim(
    out: Path, record: str, what: str, *, resume: bool | None = False, overwrite: bool | None = None
) -> None:
    """Checks that a command may write to a folder, before anything is loaded.

    Args:
        out: Folder to write to.
        record: Name of the file that marks a folder of this sort.
        what: The sort, with its article: "a run".
        resume: Whether to go on with what the folder holds; None for a command without that option.
        overwrite: Whether to replace what it holds; None for a command without that option.

    Raises:
        UsageError: Both options are set, `out` is a file, or there is nothing to resume.
        RunExistsError: The folder holds other files; or one of this sort, and neither option is set.
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
        hints = [] if resume is None else ["--resume goes on with it"]
        hints.append("choose another --out" if overwrite is None else "--overwrite replaces it")
        arguments = "overwrite=True" if resume is None else "resume=True, overwrite=True"
        in_python = "" if overwrite is None else f" (in Python: {arguments})"
        raise RunExistsError(f"{out} holds {what}: {', '.join(hints)}{in_python}")


def lock_folder(folder: Path, wait: float = 0.0) -> BinaryIO:
    """Locks a folder against all other processes; makes the folder if needed.

    The lock is an operating system lock on the file ``.lock``: it ends when the file is closed, and with the process,
    however that ends. The holder may rename the folder if it removes ``.lock`` afterwards.

    Args:
        folder: Folder to lock.
        wait: Seconds to wait for another process to release the lock.

    Returns:
        The open file, which holds the lock until it is closed: use it in a ``with`` statement.

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
    return lock


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
