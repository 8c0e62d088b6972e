"""Rows: what every source of passages and questions comes down to, and how a row's fields are read.

A JSON list, JSON lines, a parquet file and a data set on a hub all become `Rows`: numbered objects, and the way to name
the place of one in an error message. The formats of passages and questions are functions from one row to one record, so
that a format is read the same wherever it comes from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from searchgym.corpora.files import SNIFF_LINES, BadLines, FilePath, iter_jsonl, read_json, sniff
from searchgym.corpora.ids import FirstPlaces
from searchgym.errors import DataError, UsageError

Row = Mapping[str, Any]


class HasId(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str:
        """Unique in its source."""
        ...


Record = TypeVar("Record", bound=HasId)
Parser = Callable[[Row, int], Record]
"""Makes a record from a row and its 0-based position (the id of what has none). Raises DataError without a place."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbered rows of one source."""

    source: str
    """File or data set, for messages."""
    unit: Literal["line", "item", "row"]
    """What the numbers count, from 1: lines of a file, items of a JSON document, rows of a table."""
    rows: Iterable[tuple[int, Any]]

    def error(self, number: int, reason: str) -> DataError:
        """Returns an error that says where it is."""
        if self.unit == "line":
            return DataError(reason, self.source, number)
        return DataError(f"{self.unit} {number}: {reason}", self.source)


def open_rows(path: FilePath, bad: BadLines, objects: Callable[[Row], list[Row]] | None = None) -> Rows:
    """Opens a file of rows by its content: a JSON list, JSON lines (either may be gzip) or parquet.

    Args:
        path: The file. JSON lines and parquet are streamed, a JSON document is read whole.
        bad: Tolerance for bad JSON lines.
        objects: Turns a document that is one JSON object into rows; such a document is refused if left out.

    Raises:
        DataMissingError: There is no such file.
        DataError: It is empty, damaged, or none of these.
    """
    kind = sniff(path)
    if kind == "parquet":
        return Rows(str(path), "row", _parquet_rows(path))
    if kind == "jsonl":
        return Rows(str(path), "line", iter_jsonl(path, bad))
    document = read_json(path)
    if isinstance(document, dict) and objects is not None:
        document = objects(document)
    if not isinstance(document, list):
        got = f"one object with keys {_listed(document)}" if isinstance(document, dict) else type(document).__name__
        raise DataError(f"expected a JSON list of objects, got {got}", path)
    return Rows(str(path), "item", enumerate(document, start=1))


def find_format(rows: Rows, shape: Callable[[Row], str | None], expected: str) -> tuple[str, Rows]:
    """Tells the format of rows from the first few of them.

    Args:
        rows: The source.
        shape: Names the format that a row is in; None if it is in none.
        expected: What was looked for, for the message.

    Returns:
        (format, the rows as they were).

    Raises:
        DataError: None of the first rows is in a known format, or there are no rows.
    """
    stream = iter(rows.rows)
    first = list(itertools.islice(stream, SNIFF_LINES))
    objects = [row for _, row in first if isinstance(row, Mapping)]
    for row in objects:
        if (found := shape(row)) is not None:
            return found, Rows(rows.source, rows.unit, itertools.chain(first, stream))
    if not objects:
        raise DataError("holds no rows: get or make it again", rows.source)
    raise DataError(
        f"of no known format: the first row has keys {_listed(objects[0])}; expected {expected}", rows.source
    )


def parse_rows(rows: Rows, parse: Parser[Record], bad: BadLines) -> Iterator[Record]:
    """Turns rows into records with unique ids.

    Args:
        rows: The source.
        parse: The format.
        bad: Tolerance for rows that do not fit the format or repeat an id.

    Yields:
        Records, in order.

    Raises:
        DataError: A bad row more than `bad` allows, or not one good row.
    """
    places = FirstPlaces()
    for number, row in rows.rows:
        try:
            if not isinstance(row, Mapping):
                raise DataError(f"expected an object, got {_shown(row)}")
            record = parse(row, number - 1)
            if (first := places.first(record.id, number)) is not None:
                raise DataError(f"duplicate id {record.id!r}: {rows.unit} {first} has it too")
        except DataError as error:
            bad.bad(rows.error(number, error.reason))
            continue
        yield record
    if not len(places):
        raise DataError("holds not one good row: get or make it again", rows.source)


def _parquet_rows(path: FilePath) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a parquet file in small batches."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"{path} is a parquet file: reading it needs `pip install 'searchgym[train]'`") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"damaged parquet data after row {number} ({error}): get or make the file again", path
        ) from error


# -- fields of a row -----------------------------------------------------------------------------------------------


def text_field(row: Row, key: str) -> str:
    """Returns a text that must be there.

    Raises:
        DataError: It is absent, null or not text.
    """
    if row.get(key) is None:
        raise DataError(f"no {key!r}: got keys {_listed(row)}")
    return _as_text(key, row[key])


def optional_text(row: Row, key: str) -> str | None:
    """Returns a text, or None if it is absent, null or empty.

    Raises:
        DataError: It is there and not text.
    """
    value = row.get(key)
    return None if value is None else _as_text(key, value) or None


def id_field(row: Row, *keys: str, position: int | None = None) -> str:
    """Returns a row's id: the first of `keys` that is there, else the position if one is given.

    Raises:
        DataError: There is none, or it is neither text nor a whole number, or it is blank.
    """
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise DataError(f"{key!r}: expected an id, got {_shown(value)}")
        return str(value)
    if position is None:
        raise DataError(f"no {' or '.join(map(repr, keys))}: got keys {_listed(row)}")
    return str(position)


def texts_field(row: Row, key: str) -> tuple[str, ...]:
    """Returns a list of texts; empty if it is absent or null.

    Raises:
        DataError: It is there and not a list of texts.
    """
    return as_texts(key, row.get(key) or ())


def as_texts(name: str, value: Any) -> tuple[str, ...]:
    """Returns a value as a tuple of texts.

    Raises:
        DataError: It is not a list of texts.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{name!r}: expected a list of texts, got {_shown(value)}")
    return tuple(value)


def tuples_field(row: Row, key: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns a list of tuples that is stored as lists, or as one list per column (as tables on a hub do).

    Args:
        row: The row.
        key: ``"supporting_facts"``: ``[["Page", 0], ...]`` or ``{"title": ["Page", ...], "sent_id": [0, ...]}``.
        columns: Names of the members, in order.

    Returns:
        One tuple per entry; empty if the field is absent or null.

    Raises:
        DataError: It is there and neither of the two.
    """
    value = row.get(key)
    if value is None:
        return []
    if isinstance(value, Mapping):
        lists: list[Any] = [value.get(column) for column in columns]
        if not all(isinstance(one, list) for one in lists) or len(set(map(len, lists))) != 1:
            raise DataError(f"{key!r}: expected lists {', '.join(columns)} of one length, got {_shown(value)}")
        return list(zip(*lists, strict=True))
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == len(columns) for one in value):
        raise DataError(f"{key!r}: expected a list of [{', '.join(columns)}], got {_shown(value)}")
    return [tuple(one) for one in value]


def spaced(paragraphs: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns paragraphs of sentences whose plain concatenation is the text.

    HotpotQA keeps the space between two sentences at the start of the second; 2WikiMultihopQA drops it. Where most
    joints of the paragraphs lack a space, one is put at the start of the second sentence; else the sentences stay as
    they are (HotpotQA's splitter also cut some sentences in the middle of a word).
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
    """True if there is a space between two sentences, or nothing that needs one."""
    return not first or not second or first[-1].isspace() or second[0].isspace()


def _as_text(key: str, value: Any) -> str:
    """Returns `value` if it is text."""
    if not isinstance(value, str):
        raise DataError(f"{key!r}: expected text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Shows a value in a message, shortened."""
    return f"{value!r:.60}"


def _listed(row: Row) -> str:
    """Lists the keys of a row in a message, shortened."""
    keys = [str(key) for key in row]
    return ", ".join(keys[:12]) + (", ..." if len(keys) > 12 else "") if keys else "none"
