"""Rows: the common form of every source of passages and questions, and readers of a row's fields.

A JSON list, JSON lines, a parquet file and a data set on the hub all become `Rows`: numbered objects whose place an
error message can name. A format of passages or questions is a function from one row to one record, so it is read in the
same way from every source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

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
from searchgym.corpora.ids import FirstPlaces
from searchgym.corpora.readers.parquet import parquet_rows
from searchgym.errors import BadLines, DataError

PARQUET_MAGIC = b"PAR1"
"""First bytes of a parquet file."""
SNIFF_LINES = 20
"""Number of lines examined to tell a JSON document from JSON lines; one valid row among them means JSON lines."""
_TABLE: Final = re.compile(rb"""["']?[\w ]{1,40}["']?(?:[,;\t]["']?[\w ]{1,40}["']?)+""")
"""Matches the first line of a table as text: names of columns."""

Row = Mapping[str, Any]


class HasId(Protocol):
    """A record with an id, such as a passage or a question."""

    @property
    def id(self) -> str:
        """Id of the record, unique in its source."""
        ...


Record = TypeVar("Record", bound=HasId)
Parser = Callable[[Row, int], Record]
"""Makes a record from a row and its 0-based position, the default id in some formats.

Raises a DataError without a place; `parse_rows` adds the place.
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbered rows of one source."""

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
    """Opens a file of rows, whose type is detected from its content: JSON list, JSON lines (either gzip) or parquet.

    Args:
        path: The file, or a split or file of a data set on the hub (``hf:OWNER/NAME:CONFIG/SPLIT``). JSON lines and
            parquet are streamed; a JSON document is read whole.
        bad: Tolerance for bad JSON lines.
        objects: Turns a document that is a single JSON object into rows. Default: such a document is refused.
        streaming: Whether a split is streamed, too; else it is downloaded once into the hub's cache.

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
    first = list(itertools.islice(stream, SNIFF_LINES))
    objects = [row for _, row in first if isinstance(row, Mapping)]
    for row in objects:
        if (format := shape(row)) is not None:
            return format, Rows(rows.source, rows.unit, itertools.chain(first, stream))
    if not objects:
        raise DataError("holds no rows: get or make it again", rows.source)
    raise DataError(
        f"of no known format: the first row has keys {listed(objects[0])}; expected {expected}", rows.source
    )


def parse_rows(rows: Rows, parse: Parser[Record], bad: BadLines) -> Iterator[Record]:
    """Turns rows into records with unique ids.

    Args:
        rows: The rows of a source.
        parse: Parser of the format.
        bad: Tolerance for rows that do not fit the format or repeat an id.

    Yields:
        Records, in the order of the rows.

    Raises:
        DataError: There are more bad rows than `bad` allows, or no good row at all.
    """
    places = FirstPlaces()
    for number, row in rows.rows:
        try:
            if not isinstance(row, Mapping):
                raise DataError(f"expected an object, got {row!r:.60}")
            record = parse(row, number - 1)
            if (first := places.first(record.id, number)) is not None:
                raise DataError(f"duplicate id {record.id!r}: {rows.unit} {first} has it too")
        except DataError as error:
            bad.bad(rows.error(number, error.reason))
            continue
        yield record
    if not len(places):
        raise DataError("holds not one good row: get or make it again", rows.source)


# -- fields of a row -----------------------------------------------------------------------------------------------


def text_field(row: Row, key: str) -> str:
    """Returns a required text field.

    Raises:
        DataError: The field is absent, null or not text.
    """
    if row.get(key) is None:
        raise DataError(f"no {key!r}: got keys {listed(row)}")
    return optional_text(row, key) or ""


def optional_text(row: Row, key: str) -> str | None:
    """Returns an optional text field, or None if it is absent, null or empty.

    Raises:
        DataError: The field is present and not text.
    """
    value = row.get(key)
    if not isinstance(value, str | None):
        raise DataError(f"{key!r}: expected text, got {value!r:.60}")
    return value or None


def id_field(row: Row, *keys: str, position: int | None = None) -> str:
    """Returns a row's id: the value of the first of `keys` that is present, else `position` if that is given.

    Raises:
        DataError: The row has no id, or its id is blank or neither text nor an integer.
    """
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise DataError(f"{key!r}: expected an id, got {value!r:.60}")
        return str(value)
    if position is None:
        raise DataError(f"no {' or '.join(map(repr, keys))}: got keys {listed(row)}")
    return str(position)


def texts_field(row: Row, key: str) -> tuple[str, ...]:
    """Returns a field that is a list of texts; empty if the field is absent or null.

    Raises:
        DataError: The field is present and not a list of texts.
    """
    return as_texts(key, row.get(key) or ())


def as_texts(name: str, value: Any) -> tuple[str, ...]:
    """Returns a list of texts as a tuple; `name` is the field that the error message names.

    Raises:
        DataError: The value is not a list of texts.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{name!r}: expected a list of texts, got {value!r:.60}")
    return tuple(value)


def tuples_field(row: Row, key: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns a field that is a list of tuples, stored as a list of lists or as one list per column (as on the hub).

    Args:
        row: The row.
        key: Name of the field, such as ``"supporting_facts"``, whose value is ``[["Page", 0], ...]`` or
            ``{"title": ["Page", ...], "sent_id": [0, ...]}``.
        columns: Names of the members of a tuple, in order.

    Returns:
        One tuple per entry; empty if the field is absent or null.

    Raises:
        DataError: The field is present and stored in neither of the two ways.
    """
    value = row.get(key)
    if value is None:
        return []
    if isinstance(value, Mapping):
        lists: list[Any] = [value.get(column) for column in columns]
        if not all(isinstance(column, list) for column in lists) or len(set(map(len, lists))) != 1:
            raise DataError(f"{key!r}: expected lists {', '.join(columns)} of one length, got {value!r:.60}")
        return list(zip(*lists, strict=True))
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == len(columns) for item in value):
        raise DataError(f"{key!r}: expected a list of [{', '.join(columns)}], got {value!r:.60}")
    return [tuple(item) for item in value]


def spaced(paragraphs: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns paragraphs of sentences, with spaces added so that joining a paragraph's sentences gives its text.

    HotpotQA keeps the space between two sentences at the start of the second; 2WikiMultihopQA drops it. If most pairs
    of neighbouring sentences lack a space, one is put at the start of the second sentence; otherwise all sentences stay
    as they are (HotpotQA's splitter also cut some sentences in the middle of a word).
    """
    joints = [pair for sentences in paragraphs for pair in itertools.pairwise(sentences)]
    bare = [pair for pair in joints if not _has_space(*pair)]
    if len(bare) * 2 <= len(joints):
        return [tuple(sentences) for sentences in paragraphs]
    return [
        (*sentences[:1], *(b if _has_space(a, b) else f" {b}" for a, b in itertools.pairwise(sentences)))
        for sentences in paragraphs
    ]


def _has_space(first: str, second: str) -> bool:
    """Returns whether a space separates two sentences, or one of them is empty and needs none."""
    return not first or not second or first[-1].isspace() or second[0].isspace()


def listed(row: Row) -> str:
    """Returns the first 12 keys of a row as text for an error message."""
    keys = [str(key) for key in row]
    return ", ".join(keys[:12]) + (", ..." if len(keys) > 12 else "") if keys else "none"
