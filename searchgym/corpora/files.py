"""Reads and writes JSON and JSON lines, plain or gzip; downloads.

A file's type is detected from its content, not from its name: gzip by its first bytes. Read errors name the file and
line. Writing is atomic: until a file is complete it has a temporary name in the same folder.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import io
import json
import os
import re
import secrets
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

from searchgym import reading
from searchgym.errors import DataError, DataMissingError, UsageError

FilePath = str | os.PathLike[str]
Progress = Callable[[int, int | None], None]
"""Callback of a download: called with the bytes done so far and the bytes expected (None if unknown)."""

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""
PARQUET_MAGIC = b"PAR1"
"""First bytes of a parquet file."""
BOM = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
SNIFF_LINES = 20
"""Number of lines examined to tell a JSON document from JSON lines; one valid row among them means JSON lines."""
MAX_LINE = 1 << 26
"""Maximum length of one line of JSON lines, in bytes after unpacking: a small gzip file may hold an endless line."""
MAX_DOCUMENT = 1 << 32
"""Maximum length of a JSON document that holds a whole corpus or set of questions, in bytes after unpacking."""
MAX_RATIO = 100
"""Maximum length of a file after unpacking, by its length on disk; texts reach about ten."""
CHUNK = 1 << 20
"""Number of bytes copied at a time."""
TIMEOUT = 30.0
"""Seconds without data after which a download fails."""


class BadLines:
    """Tolerance of a reader for bad lines, and the record of those it skipped: the rule behind ``--skip-bad N``.

    Args:
        limit: Number of bad lines to skip; the next one is raised.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.errors: list[DataError] = []
        """Errors of the skipped lines, in order, for the report to the user."""

    def bad(self, error: DataError) -> None:
        """Records the error of a bad line that is skipped.

        Raises:
            DataError: `error` itself, if `limit` bad lines were skipped before.
        """
        if len(self.errors) < self.limit:
            self.errors.append(error)
        elif self.limit == 0:
            raise error
        else:
            count = f"bad line number {self.limit + 1}, at most {self.limit} may be left out"
            raise type(error)(f"{error.reason} ({count})", error.path, error.line) from error


# -- reading -------------------------------------------------------------------------------------------------------


def read_bytes(path: FilePath, limit: int = MAX_LINE) -> bytes:
    """Returns the bytes of a file.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file cannot be read, is a pipe or a device, or has more than `limit` bytes.
    """
    with _reading(path):
        try:
            return reading.read_bytes(path, limit)
        except ValueError as error:
            raise DataError(f"{error}: too long to be read whole", path) from None


def read_json(path: FilePath, limit: int = MAX_LINE) -> Any:
    """Reads one JSON document, plain or gzip.

    Args:
        path: The file.
        limit: Maximum length of the document, in bytes after unpacking: `MAX_DOCUMENT` where it is a whole corpus.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, too long, damaged gzip, not UTF-8 or not JSON, or an object has the same key twice
            (of two pages with one title Python would silently keep the last).
    """
    content = _read_whole(path, limit)
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(error), path, content.count(b"\n", 0, error.start) + 1) from error
    except json.JSONDecodeError as error:
        raise DataError(_not_json(error), path, error.lineno) from error
    except DataError as error:
        raise DataError(error.reason, path) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}", path) from error


def iter_jsonl(
    path: FilePath, bad: BadLines | None = None, limit: int = MAX_LINE
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Reads JSON lines one by one, plain or gzip, in constant memory.

    Lines end at ``\n`` only, because text may hold other line separators such as U+2028. Blank lines and a byte order
    mark are skipped.

    Args:
        path: The file.
        bad: Tolerance for lines that are not UTF-8, not JSON or not an object. Default: the first one is an error.
        limit: Maximum length of a line, in bytes after unpacking; a longer one is an error whatever `bad` allows.

    Yields:
        Pairs (1-based line number, object).

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, blank or damaged, has a line that is too long, or more bad lines than `bad`
            allows.
    """
    bad = BadLines() if bad is None else bad
    blank = True
    for number, line in _lines(path, limit + 1):
        if len(line) > limit:
            raise DataError(f"a line of more than {limit:,} bytes: get or make the file again", path, number)
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


def text_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Yields (1-based number, line with its line break) of a text in UTF-8, plain or gzip, without a byte order mark.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is damaged, has a line of more than `MAX_LINE` bytes or is not UTF-8.
    """
    if Path(path).is_file() and not Path(path).stat().st_size:
        return
    for number, line in _lines(path, MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise DataError(f"a line of more than {MAX_LINE:,} bytes: get or make the file again", path, number)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(_not_utf8(error), path, number) from error


def parse_line(line: bytes) -> dict[str, Any]:
    """Returns the object on one line of JSON lines.

    Raises:
        DataError: The line is not UTF-8, not JSON or not an object. The error names no file or line.
    """
    line = line.strip()
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(error)) from error
    except json.JSONDecodeError as error:
        raise DataError(f"{_not_json(error)}, got {_shown(line)}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, got {_shown(line)}")
    return value


def sniff(path: FilePath) -> Literal["json", "jsonl", "parquet"]:
    """Returns a file's type, detected from its content: one JSON document, JSON lines or parquet.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, damaged or of none of the three types.
    """
    start = b""
    for number, line in _lines(path, MAX_LINE + 1):
        if number == 1:
            if line.startswith(PARQUET_MAGIC):
                return "parquet"
            line = line.removeprefix(BOM)
        start = start or line.strip()
        if start.startswith(b"["):
            return "json"
        if len(line) > MAX_LINE:  # only the beginning of a line, which is too long for a row
            break
        if _is_row(line):
            return "jsonl"
        if number >= SNIFF_LINES:
            break
    if start.startswith(b"{"):
        return "json"
    table = Path(path).suffix in (".csv", ".tsv") or _TABLE.fullmatch(start)
    hint = "; a table as text (CSV or TSV) is not read: convert it to JSON lines" if table else ""
    raise DataError(f"neither JSON, JSON lines nor parquet: it begins with {_shown(start)}{hint}", path)


_TABLE: Final = re.compile(rb"""["']?[\w ]{1,40}["']?(?:[,;\t]["']?[\w ]{1,40}["']?)+""")
"""Matches the first line of a table as text: names of columns."""


def _shown(line: bytes) -> str:
    """Returns the beginning of a line for an error message."""
    return repr(line[:60].decode("utf-8", "replace"))


def sha256_file(path: FilePath) -> str:
    """Returns the sha256 of a file's bytes on disk (not unpacked), in hexadecimal.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file cannot be read, or is a device, which may have no end.
    """
    with _reading(path), reading.open_file(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


@contextmanager
def _reading(path: FilePath) -> Iterator[None]:
    """Turns errors of the operating system into a `DataError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataMissingError("no such file: check the path", path) from None
    except OSError as error:
        reason = error.strerror if error.errno == errno.EINVAL else f"cannot be read: {error.strerror}"
        raise DataError(str(reason), path) from error


def _read_whole(path: FilePath, limit: int) -> bytes:
    """Returns the bytes of a plain or gzip file; raises a DataError if there are more than `limit`."""
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    limit = min(limit, max(MAX_LINE, MAX_RATIO * size))
    lines: list[bytes] = []
    left = limit
    for number, line in _lines(path, limit + 1):
        left -= len(line)
        if left < 0:
            reason = (
                f"a JSON document of more than {limit:,} bytes in a file of {size:,}: get it again, or convert it to "
                "JSON lines, which are not read whole"
            )
            raise DataError(reason, path, number)
        lines.append(line)
    return b"".join(lines)


def _lines(path: FilePath, most: int) -> Iterator[tuple[int, bytes]]:
    """Yields (1-based number, line with its line break) of a plain or gzip file; every fault becomes a DataError.

    Of a line longer than `most` bytes, the first `most` are yielded; the caller must then stop.
    """
    number = 0
    with _reading(path), reading.open_file(path) as raw:
        magic = cast(io.BufferedReader, raw).peek(2)[:2]
        if not magic:
            raise DataError("the file is empty: get or make it again", path)
        packed = magic == GZIP_MAGIC
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        left = max(MAX_LINE, MAX_RATIO * os.fstat(raw.fileno()).st_size)
        try:
            while line := stream.readline(most):
                number += 1
                yield number, line
                left -= len(line)
                if packed and left < 0:
                    reason = f"unpacks to more than {MAX_RATIO} times its size: get it again, or unpack it first"
                    raise DataError(reason, path, number)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = f"damaged gzip data ({error}): the file was cut or altered, get or make it again"
            raise DataError(reason, path, number + 1) from error


def _is_row(line: bytes) -> bool:
    """Returns whether a line is a JSON object that can be a row; ``{title: [sentences]}`` is a whole document."""
    try:
        row = parse_line(line)
    except DataError:
        return False
    return not row or not all(isinstance(value, list) for value in row.values())


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object made of its pairs; raises a DataError if a key occurs twice."""
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DataError(f"an object holds the key {key!r:.80} twice")
            seen.add(key)
    return document


def _not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the reason for a DataError about bytes that are not UTF-8."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} ({error.reason}); convert the file to UTF-8"


def _not_json(error: json.JSONDecodeError) -> str:
    """Returns the reason for a DataError about text that is not JSON; some of Python's own end with "at"."""
    return f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"


# -- writing -------------------------------------------------------------------------------------------------------


def dump_line(value: Any) -> bytes:
    """Returns a value as one line of JSON in UTF-8, with the line break.

    Text that is not valid Unicode (lone surrogates) is written with ASCII escapes, so that reading it back gives the
    same text.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode("ascii") + b"\n"


@contextmanager
def write_atomic(path: FilePath) -> Iterator[BinaryIO]:
    """Opens a file for atomic writing: it gets its name only on success. Compressed if the name ends in ``.gz``.

    Inside the block the bytes go to a temporary file in the same folder, which is made if needed. When the block ends,
    the file is flushed to disk and renamed, replacing any earlier file; after an exception it is removed. The same
    bytes always give the same file, even with gzip, because neither name nor time is stored.

    Args:
        path: The file to write.

    Yields:
        The open file, for bytes.

    Raises:
        UsageError: `path` cannot be written, or is a folder or a device.
    """
    with _replacing(Path(path)) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file


def write_jsonl(path: FilePath, rows: Iterable[Any]) -> int:
    """Writes values as JSON lines atomically, compressed if the name ends in ``.gz``.

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
        with urllib.request.urlopen(url, timeout=TIMEOUT) as reply, _replacing(Path(path)) as file:
            length = reply.headers.get("Content-Length")
            expected = int(length) if length is not None else None
            actual = _copy(reply, file, expected, progress)
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


def _copy(source: BinaryIO, file: BinaryIO, expected: int | None, progress: Progress | None) -> str:
    """Copies bytes from one stream to another and returns their sha256 in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        file.write(chunk)
        digest.update(chunk)
        if progress is not None:
            progress(file.tell(), expected)
    return digest.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` on success and is removed otherwise."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder or a device, it cannot be written as a file: choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = temporary.open("xb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
