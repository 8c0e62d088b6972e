"""Reads and writes JSON and JSON lines, plain or gzip.

A file's type is detected from its content, not from its name: gzip by its first bytes. Read errors name the file and
line. Writing is atomic: until a file is complete it has a temporary name in the same folder.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from searchgym import reading
from searchgym.errors import BadLines, DataError, DataMissingError, UsageError

FilePath = str | os.PathLike[str]
GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""
BOM = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
MAX_LINE = 1 << 26
"""Maximum length of one line of JSON lines, in bytes after unpacking: a small gzip file may hold an endless line."""
MAX_DOCUMENT = 1 << 32
"""Maximum length of a JSON document that holds a whole corpus or set of questions, in bytes after unpacking."""
MAX_RATIO = 100
"""Maximum ratio of a file's length after unpacking to its length on disk; texts reach about ten."""


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
        limit: Maximum length of the document, in bytes after unpacking: `MAX_DOCUMENT` for a whole corpus.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, too long, damaged gzip, not UTF-8 or not JSON, or an object has the same key twice
            (of two pages with one title Python would silently keep the last).
    """
    lines: list[bytes] = []
    left = limit
    for number, line in raw_lines(path, limit + 1):
        left -= len(line)
        if left < 0:
            reason = f"a JSON document of more than {limit:,} bytes in a file of {Path(path).stat().st_size:,}"
            hint = "download it again, or convert it to JSON lines, which are streamed"
            raise DataError(f"{reason}: {hint}", path, number)
        lines.append(line)
    try:
        return _parsed(b"".join(lines), object_pairs_hook=_without_repeats)
    except DataError as error:
        raise DataError(error.reason, path, error.line) from error.__cause__


def iter_jsonl(
    path: FilePath, bad: BadLines | None = None, limit: int = MAX_LINE
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yields (1-based number, object) for each of the JSON lines of a file, plain or gzip, in constant memory.

    Lines end at ``\n`` only, because text may hold other line separators such as U+2028. Blank lines and a byte order
    mark are skipped.

    Args:
        path: The file.
        bad: Tolerance for lines that are not UTF-8, not JSON or not an object. Default: the first one is an error.
        limit: Maximum length of a line, in bytes after unpacking; a longer one is an error whatever `bad` allows.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, blank or damaged, a line is too long, or more lines are bad than `bad` allows.
    """
    blank = True
    for number, line in _whole_lines(path, limit):
        if not line.strip():
            continue
        blank = False
        try:
            row = parse_line(line)
        except DataError as error:
            located = DataError(error.reason, path, number)
            if bad is None:
                raise located from error.__cause__
            bad.bad(located)
            continue
        yield number, row
    if blank:
        raise DataError("the file holds blank lines only: download or create it again", path)


def text_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Yields (1-based number, line with its line break) of a text in UTF-8, plain or gzip, without a byte order mark.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is damaged, has a line of more than `MAX_LINE` bytes or is not UTF-8.
    """
    if Path(path).is_file() and not Path(path).stat().st_size:
        return
    for number, line in _whole_lines(path, MAX_LINE):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(_not_utf8(error), path, number) from error


def parse_line(line: bytes) -> dict[str, Any]:
    """Returns the object on one line of JSON lines.

    Raises:
        DataError: The line is not UTF-8, not JSON or not an object. The error names no file or line.
    """
    value = _parsed(line.strip())
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, got {beginning(line.strip())}")
    return value


def sha256_file(path: FilePath) -> str:
    """Returns the sha256 of a file's bytes on disk (not unpacked), in hexadecimal.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file cannot be read, or is a device, which may be endless.
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


def raw_lines(path: FilePath, most: int) -> Iterator[tuple[int, bytes]]:
    """Yields (1-based number, line with its line break) of a plain or gzip file.

    Of a line longer than `most` bytes, the first `most` are yielded; the caller must then stop.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty or damaged, or unpacks to more than `MAX_RATIO` times its size.
    """
    number = 0
    with _reading(path), reading.open_file(path) as raw:
        magic = cast(io.BufferedReader, raw).peek(2)[:2]
        if not magic:
            raise DataError("the file is empty: download or create it again", path)
        packed = magic == GZIP_MAGIC
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        left = max(MAX_LINE, MAX_RATIO * os.fstat(raw.fileno()).st_size)
        try:
            while line := stream.readline(min(most, left + 1)):
                number += 1
                left -= len(line)
                if left < 0:
                    reason = f"unpacks to more than {MAX_RATIO} times its size: download it again, or unpack it first"
                    raise DataError(reason, path, number)
                yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = f"damaged gzip data ({error}): the file was cut or altered, download or create it again"
            raise DataError(reason, path, number + 1) from error


def _whole_lines(path: FilePath, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of `raw_lines`, without a byte order mark; a line of more than `limit` bytes is an error."""
    for number, line in raw_lines(path, limit + 1):
        if len(line) > limit:
            raise DataError(f"a line of more than {limit:,} bytes: download or create the file again", path, number)
        yield number, line.removeprefix(BOM) if number == 1 else line


def _parsed(content: bytes, **options: Any) -> Any:
    """Parses JSON; the DataError for anything else names the line in `content`."""
    try:
        return json.loads(content.removeprefix(BOM).decode(), **options)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(error), None, content.count(b"\n", 0, error.start) + 1) from error
    except json.JSONDecodeError as error:
        line = content.split(b"\n")[error.lineno - 1]
        reason = f"{error.msg.removesuffix(' at')} at column {error.colno}"  # some of Python's messages end with "at"
        raise DataError(f"not JSON: {reason}, got {beginning(line)}", None, error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object made of its pairs; raises a DataError if a key occurs twice."""
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
        raise DataError(f"an object has the key {repeated!r:.80} twice")
    return document


def _not_utf8(error: UnicodeDecodeError) -> str:
    """Returns the reason for a DataError about bytes that are not UTF-8."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} ({error.reason}); convert the file to UTF-8"


def beginning(line: bytes) -> str:
    """Returns the beginning of a line for an error message."""
    return repr(line[:60].decode("utf-8", "replace"))


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
    """Opens a file for atomic writing, compressed if the name ends in ``.gz``: it gets its name only on success.

    Until the block ends, the bytes go to a temporary file in the same folder, which is created if needed. The same
    bytes always give the same file, even with gzip, because neither name nor time is stored in it.

    Raises:
        UsageError: `path` cannot be written, or is a folder or a device.
    """
    with replacing(Path(path)) as file:
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


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path`, or is removed after an error; see `write_atomic`."""
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
