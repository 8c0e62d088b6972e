"""Files on disk: JSON and JSON lines, plain or gzip, read with the place of every fault and written all at once.

A file is read by what it holds, not by what it is called: gzip is told by its first bytes. What is written appears
under its name only when it is complete: until then it has a temporary name in the same folder.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import http.client
import json
import os
import secrets
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from searchgym.errors import DataError, DataMissingError, RunExistsError, UsageError

FilePath = str | os.PathLike[str]
Progress = Callable[[int, int | None], None]
"""Called with the bytes done so far and the bytes expected (None if unknown)."""

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
BOM = b"\xef\xbb\xbf"
SNIFF_LINES = 20
"""Lines looked at to tell one JSON document from JSON lines; a good row among them settles it."""
CHUNK = 1 << 20
"""Bytes copied at a time."""
TIMEOUT = 30.0
"""Seconds without a byte after which a download has failed."""


class BadLines:
    """How many bad lines a reader may leave out, and which it did: the rule behind ``--skip-bad N``.

    Args:
        limit: Bad lines tolerated; the next one is raised.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.errors: list[DataError] = []
        """What was left out, in order: to be reported."""

    def bad(self, error: DataError) -> None:
        """Records a bad line.

        Raises:
            DataError: `error`, if `limit` bad lines were left out before.
        """
        if len(self.errors) < self.limit:
            self.errors.append(error)
        elif self.limit == 0:
            raise error
        else:
            count = f"bad line number {self.limit + 1}, at most {self.limit} may be left out"
            raise type(error)(f"{error.reason} ({count})", error.path, error.line) from error


# -- reading -------------------------------------------------------------------------------------------------------


def read_json(path: FilePath) -> Any:
    """Reads one JSON document, plain or gzip.

    Raises:
        DataMissingError: There is no such file.
        DataError: Empty, damaged gzip, not UTF-8, not JSON, or an object that names a key twice (of two values under
            one title Python would silently keep the last).
    """
    content = b"".join(line for _, line in _lines(path))
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(error), path, content.count(b"\n", 0, error.start) + 1) from error
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}", path, error.lineno) from error
    except DataError as error:
        raise DataError(error.reason, path) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}", path) from error


def iter_jsonl(path: FilePath, bad: BadLines | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Reads JSON lines one by one, plain or gzip, in constant memory.

    Lines end at ``\n`` only (text may hold other line separators, U+2028 for one). Blank lines and a byte order mark
    are passed over.

    Args:
        path: The file.
        bad: Tolerance for lines that are not UTF-8, not JSON or not an object; none if left out.

    Yields:
        (1-based line number, object).

    Raises:
        DataMissingError: There is no such file.
        DataError: The file is empty, blank or damaged, or holds more bad lines than `bad` allows.
    """
    bad = BadLines() if bad is None else bad
    blank = True
    for number, line in _lines(path):
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.strip():
            continue
        blank = False
        try:
            row = parse_line(line)
        except DataError as error:
            bad.bad(DataError(error.reason, path, number))
            continue
        yield number, row
    if blank:
        raise DataError("the file holds blank lines only: get or make it again", path)


def parse_line(line: bytes) -> dict[str, Any]:
    """Returns the object on one line of JSON lines.

    Raises:
        DataError: Without a place; not UTF-8, not JSON or not an object.
    """
    line = line.strip()
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(error)) from error
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}, got {line[:60]!r}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, got {line[:60]!r}")
    return value


def sniff(path: FilePath) -> Literal["json", "jsonl", "parquet"]:
    """Tells from a file's content whether it is one JSON document, JSON lines or parquet.

    Raises:
        DataMissingError: There is no such file.
        DataError: It is empty, damaged, or none of the three.
    """
    start = b""
    for number, line in _lines(path):
        if number == 1:
            if line.startswith(PARQUET_MAGIC):
                return "parquet"
            line = line.removeprefix(BOM)
        start = start or line.strip()
        if start.startswith(b"["):
            return "json"
        if _is_row(line):
            return "jsonl"
        if number >= SNIFF_LINES:
            break
    if start.startswith(b"{"):
        return "json"
    raise DataError(f"neither JSON, JSON lines nor parquet: it begins with {start[:60]!r}", path)


def sha256_file(path: FilePath) -> str:
    """Returns the sha256 of a file's bytes as they are on disk, in hexadecimal.

    Raises:
        DataMissingError: There is no such file.
        DataError: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataMissingError("no such file: check the path", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from error


def _lines(path: FilePath) -> Iterator[tuple[int, bytes]]:
    """Yields (1-based number, line with its end) of a plain or gzip file, turning every fault into a DataError."""
    file = Path(path)
    if not file.exists():
        raise DataMissingError("no such file: check the path", path)
    if not file.is_file():
        raise DataError("is a folder or a device: give a file", path)
    number = 0
    try:
        with file.open("rb") as raw:
            magic = raw.peek(2)[:2]
            if not magic:
                raise DataError("the file is empty: get or make it again", path)
            stream = gzip.GzipFile(fileobj=raw) if magic == GZIP_MAGIC else raw
            for number, line in enumerate(stream, start=1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"damaged gzip data ({error}): the file was cut or altered, get or make it again"
        raise DataError(reason, path, number + 1) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from error


def _is_row(line: bytes) -> bool:
    """True if a line alone is a JSON object that can be a row; ``{title: [sentences]}`` is a whole document."""
    try:
        row = parse_line(line)
    except DataError:
        return False
    return not row or not all(isinstance(value, list) for value in row.values())


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object, refusing a key that comes twice."""
    built = dict(pairs)
    if len(built) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in built if keys.count(key) > 1)
        raise DataError(f"an object holds the key {twice!r} twice")
    return built


def _not_utf8(error: UnicodeDecodeError) -> str:
    """Describes bytes that are not UTF-8."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} ({error.reason}); convert the file to UTF-8"


# -- writing -------------------------------------------------------------------------------------------------------


def dump_line(value: Any) -> bytes:
    """Returns a value as one line of JSON in UTF-8, its end included.

    Text that is no valid Unicode (lone surrogates) is written with ASCII escapes, so that it reads back equal.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode("ascii") + b"\n"


@contextmanager
def write_atomic(path: FilePath) -> Iterator[BinaryIO]:
    """Opens a file for writing bytes that gets its name only on success; packed if the name ends in ``.gz``.

    Inside the block the bytes go to a temporary name in the same folder, which is made if needed. At its end they are
    flushed to disk and take the name, replacing what was there; after an exception they are removed. The same bytes
    always give the same file, gzip too: no name and no time are packed in.

    Args:
        path: The file to write.

    Yields:
        The open file.

    Raises:
        UsageError: The place cannot be written to, or is a folder or a device.
    """
    with _replacing(Path(path)) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file


@contextmanager
def lock_folder(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Makes a folder if need be and holds it until the block ends, against every other process.

    The lock is the operating system's, on the file ``.lock``: it goes with the process, however that ends. The block
    may give the folder another name, if it removes that file first.

    Args:
        folder: What to hold.
        wait: Seconds to wait for another process that holds it.

    Raises:
        RunExistsError: Another process holds it.
        UsageError: The folder cannot be made or written.
    """
    end = time.monotonic() + wait
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() >= end:
            raise RunExistsError(f"{folder} is in use by another process: wait for it or choose another")
        time.sleep(0.1)
    with lock:
        yield


def _try_lock(folder: Path) -> BinaryIO | None:
    """Returns the locked file of a folder, None if another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab")
    except FileNotFoundError:  # moved away by the one who held it, between the two lines
        return None
    except OSError as error:
        raise UsageError(f"{folder} cannot be made a folder to write to: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_ino == (folder / ".lock").stat().st_ino:
            return lock
    except OSError:  # held, or moved away with its folder by the one who held it
        pass
    lock.close()
    return None


def write_jsonl(path: FilePath, rows: Iterable[Any]) -> int:
    """Writes values as JSON lines, all at once; packed if the name ends in ``.gz``.

    Returns:
        Number of lines written.
    """
    count = 0
    with write_atomic(path) as file:
        for row in rows:
            file.write(dump_line(row))
            count += 1
    return count


def download(url: str, path: FilePath, sha256: str | None = None, progress: Progress | None = None) -> None:
    """Downloads a file; it gets its name only when it is complete and checked.

    Args:
        url: ``http``, ``https`` or ``file`` address.
        path: Where to put it; the bytes are kept as they come.
        sha256: What the file must have, in hexadecimal; not checked if left out.
        progress: Told about every `CHUNK` of bytes.

    Raises:
        UsageError: Another kind of address, or a place that cannot be written to.
        DataMissingError: It cannot be had; says why.
        DataError: It was cut short or has another sha256.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https", "file"):
        raise UsageError(f"cannot download {url!r}: expected an http, https or file address")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as reply, _replacing(Path(path)) as file:
            length = reply.headers.get("Content-Length")
            expected = int(length) if length is not None else None
            found = _copy(reply, file, expected, progress)
            if expected is not None and file.tell() != expected:
                raise DataError(
                    f"{url} ended after {file.tell()} of {expected} bytes: nothing was kept, try again", path
                )
            if sha256 is not None and found != sha256.lower():
                raise DataError(f"{url} has sha256 {found}, expected {sha256.lower()}: nothing was kept", path)
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise DataMissingError(
            f"{url} could not be downloaded ({error}): get it by hand and put it here", path
        ) from error


def _copy(source: BinaryIO, file: BinaryIO, expected: int | None, progress: Progress | None) -> str:
    """Copies bytes from one stream to another; returns their sha256."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        file.write(chunk)
        digest.update(chunk)
        if progress is not None:
            progress(file.tell(), expected)
    return digest.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that takes the place of `path` on success and is removed otherwise."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder or a device, it cannot be written as a file: choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = part.open("xb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
