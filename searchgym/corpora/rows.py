"""Rows: the common form of every source of passages and questions.

A JSON list, JSON lines, a parquet file and a data set on the hub all become `Rows`: numbered objects, so that
error messages can name a row. A format of passages or questions is a function from one row to one record, so it is
read in the same way from every source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from searchgym.corpora.fields import Row, listed
from searchgym.corpora.files import (
    BOM,
    MAX_DOCUMENT,
    MAX_LINE,
    FilePath,
    beginning,
    iter_jsonl,
    parse_line,
    raw_lines,
    read_json,
)
from searchgym.corpora.ids import FirstPositions
from searchgym.corpora.readers.parquet import parquet_rows
from searchgym.errors import BadLines, DataError

PARQUET_MAGIC = b"PAR1"
"""First bytes of a parquet file."""
SNIFF_LINES = 20
"""Number of lines examined to tell a JSON document from JSON lines; one valid row among them means JSON lines."""
_TABLE: Final = re.compile(rb"""["']?[\w ]{1,40}["']?(?:[,;\t]["']?[\w ]{1,40}["']?)+""")
"""Matches the first line of a table as text: names of columns."""


class HasId(Protocol):
    """A record with an id, such as a passage or a question."""

    @property
    def id(self) -> str:
        """Id of the record, unique in its source."""
        ...


Record = TypeVar("Record", bound=HasId)
Parser = Callable[[Row, int], Record]
"""Makes a record from a row and its 0-based position, the default id in some formats.

Raises a DataError without a location; `parse_rows` adds the location.
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one file or data set, each with its number for error messages."""

    source: str
    """Name of the file or data set, for error messages."""
    unit: Literal["line", "item", "row"]
    """Unit that the row numbers count: lines of a file, items of a JSON document or rows of a table."""
    rows: Iterable[tuple[int, Any]]
    """Pairs (1-based number, row); a row is not checked to be an object yet."""

    def error(self, number: int, reason: str) -> DataError:
        """Returns a `DataError` that names the source and the number of the faulty row."""
        if self.unit == "line":
            return DataError(reason, self.source, number)
        return DataError(f"{self.unit} {number}: {reason}", self.source)


def open_rows(
    path: FilePath, bad: BadLines, objects: Callable[[Row], list[Row]] | None = None, streaming: bool = False
) -> Rows:
    """Opens a file of rows: JSON list, JSON lines (both plain or gzip) or parquet, as detected from its content.

    Args:
        path: The file, or a split or file of a data set on the hub (``hf:OWNER/NAME:CONFIG/SPLIT``). JSON lines and
            parquet are streamed; a JSON document is read whole.
        bad: Tolerance for bad JSON lines.
        objects: Turns a document that is a single JSON object into rows. Default: such a document is refused.
        streaming: Whether to stream a split as well; otherwise it is downloaded once into the hub's cache.

    Raises:
        UsageError: The name on the hub has another form, or a package is not installed.
        DataMissingError: The source does not exist or cannot be reached.
        DataError: The file is empty, damaged or of another type.
    """
    if str(path).startswith("hf:"):
        from searchgym.corpora.hub import HubSource, hub_file, hub_rows

        source = HubSource.parse(str(path))
        if source.file is None:
            return Rows(str(path), "row", hub_rows(source, streaming))
        path = hub_file(source)
    kind = sniff(path)
    if kind == "parquet":
        return Rows(str(path), "row", parquet_rows(path))
    if kind == "jsonl":
        return Rows(str(path), "line", iter_jsonl(path, bad))
    document = read_json(path, MAX_DOCUMENT)
    if isinstance(document, dict) and objects is not None:
        document = objects(document)
    if not isinstance(document, list):
        got = f"one object with keys {listed(document)}" if isinstance(document, dict) else type(document).__name__
        raise DataError(f"expected a JSON list of objects, got {got}", path)
    return Rows(str(path), "item", enumerate(document, start=1))


def sniff(path: FilePath) -> Literal["json", "jsonl", "parquet"]:
    """Returns a file's type, detected from its content: one JSON document, JSON lines or parquet.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, damaged or of none of the three types.
    """
    start = b""
    for number, line in raw_lines(path, MAX_LINE + 1):
        if number == 1:
            if line.startswith(PARQUET_MAGIC):
                return "parquet"
            line = line.removeprefix(BOM)
        start = start or line.strip()
        if start.startswith(b"["):
            return "json"
        if len(line) > MAX_LINE:  # only the beginning of a line, which is too long for a row
            break
        try:
            row = parse_line(line)
        except DataError:
            row = {"": []}
        if not row or not all(isinstance(value, list) for value in row.values()):
            return "jsonl"  # else it may be a whole document, ``{title: [sentences]}``
        if number >= SNIFF_LINES:
            break
    if start.startswith(b"{"):
        return "json"
    table = Path(path).suffix in (".csv", ".tsv") or _TABLE.fullmatch(start)
    hint = "; a table as text (CSV or TSV) is not read: convert it to JSON lines" if table else ""
    raise DataError(f"neither JSON, JSON lines nor parquet: it begins with {beginning(start)}{hint}", path)


def find_format(rows: Rows, shape: Callable[[Row], str | None], expected: str) -> tuple[str, Rows]:
    """Detects the format of rows from the first few of them.

    Args:
        rows: The rows of a source.
        shape: Returns the name of a row's format, or None if no known format fits.
        expected: Description of the known formats for the error message.

    Returns:
        The name of the format, and all the rows (the first ones included).

    Raises:
        DataError: None of the first rows is in a known format, or there are no rows.
    """
    stream = iter(rows.rows)
    first: list[tuple[int, Any]] = []  # no longer than needed: a row may have megabytes
    for number, row in itertools.islice(stream, SNIFF_LINES):
        first.append((number, row))
        if isinstance(row, Mapping) and (format := shape(row)) is not None:
            return format, Rows(rows.source, rows.unit, itertools.chain(first, stream))
    objects = [row for _, row in first if isinstance(row, Mapping)]
    if not objects:
        raise DataError("holds no rows: download or create it again", rows.source)
    raise DataError(f"unknown format: the first row has keys {listed(objects[0])}; expected {expected}", rows.source)


def parse_rows(rows: Rows, parse: Parser[Record], bad: BadLines) -> Iterator[Record]:
    """Turns rows into records with unique ids.

    Args:
        rows: The rows of a source.
        parse: Parser of the format.
        bad: Tolerance for rows that do not fit the format or repeat an id.

    Yields:
        Records, in the order of the rows.

    Raises:
        DataError: There are more bad rows than `bad` allows, or no valid row at all.
    """
    first_rows = FirstPositions()
    for number, row in rows.rows:
        try:
            if not isinstance(row, Mapping):
                raise DataError(f"expected an object, got {row!r:.60}")
            record = parse(row, number - 1)
            if (first := first_rows.first(record.id, number)) is not None:
                raise DataError(f"duplicate id {record.id!r}: {rows.unit} {first} has it too")
        except DataError as error:
            bad.bad(rows.error(number, error.reason))
            continue
        yield record
    if not len(first_rows):
        raise DataError("holds no valid row: download or create it again", rows.source)
