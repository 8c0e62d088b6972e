"""Parquet: rows as Arrow reads them, and small files that stand for gigabytes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from searchgym.corpora.passages import read_passages
from searchgym.corpora.readers import parquet
from searchgym.corpora.readers.parquet import parquet_rows
from searchgym.errors import DataError

MIB = 1 << 20
ROWS = [
    {
        "id": str(number),
        "text": "shared" if number % 2 else f"own {number}",
        "list": [["a", f"b{number} " * 100], [], None, ["c"]],
        "struct": {"x": number, "y": None if number % 3 else "y"},
        "flag": number % 5 == 0,
        "when": datetime.datetime(2001, 2, 3, tzinfo=datetime.UTC),
        "bytes": b"\xff\x00",
        "nothing": None,
        "real": number / 3,
    }
    for number in range(2500)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none", "use_dictionary": False},
        {"compression": "zstd", "row_group_size": 7, "data_page_version": "2.0"},
        {"compression": "gzip", "data_page_size": 100, "write_statistics": True, "write_page_index": True},
        {"compression": "brotli", "write_page_checksum": True, "store_schema": False},
    ],
)
def test_rows_are_those_of_arrow(tmp_path: Path, options: dict[str, object]) -> None:
    path = tmp_path / "x.parquet"
    rows = ROWS[:100] if "row_group_size" in options else ROWS
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    assert [row for _, row in parquet_rows(path)] == pq.read_table(path).to_pylist()


def text_table(**columns: object) -> pa.Table:
    return pa.table({"id": ["1"], "title": ["t"], **columns})


def shared(rows: int) -> pa.Table:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * MIB]))
    return pa.table({"id": list(map(str, range(rows))), "title": ["t"] * rows, "text": texts})


def in_one_row() -> pa.Table:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["a" * MIB]))
    return text_table(text=["x"], more=pa.ListArray.from_arrays(pa.array([0, 100], pa.int32()), texts))


def numbers() -> pa.Table:
    zeros = pa.array([0], pa.int8()).take(pa.repeat(0, 9_000_000))
    return text_table(text=["x"], more=pa.ListArray.from_arrays(pa.array([0, 9_000_000], pa.int32()), zeros))


BOMBS: dict[str, tuple[Callable[[], pa.Table], bool, str]] = {
    "cell": (lambda: text_table(text=["a" * (66 * MIB)]), False, "column 'text' unpacks to more than 67,108,864 bytes"),
    "columns": (
        lambda: text_table(**{f"c{n}": ["a" * (8 * MIB)] for n in range(9)}),
        False,
        "column 'c7' unpacks to more than 67,108,864 bytes",
    ),
    "dictionary": (lambda: shared(600), True, "its rows share texts of more than 268,435,456 bytes in all"),
    "a row of shared texts": (in_one_row, True, "a row of more than 67,108,864 bytes"),
    "a list of equal numbers": (numbers, True, "column 'more.list.element' unpacks to more than 67,108,864 bytes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_stands_for_much_memory(tmp_path: Path, name: str) -> None:
    make, dictionary, message = BOMBS[name]
    path = tmp_path / "x.parquet"
    pq.write_table(make(), path, compression="zstd", use_dictionary=dictionary, store_schema=False)
    assert path.stat().st_size < 10_000
    before = pa.total_allocated_bytes()
    most = 0
    with pytest.raises(DataError, match=rf"^{path}: after row \d+: {message}"):
        for _ in read_passages(path):
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 40 * MIB


def varint(value: int, length: int = 0) -> bytes:
    """Returns a number as Thrift writes it, in as many bytes as are asked for."""
    out = bytearray()
    while value > 127 or len(out) + 1 < length:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.slow
def test_what_the_end_of_the_file_says_of_its_pages_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(text_table(text=["a" * (66 * MIB)]), path, compression="zstd", use_dictionary=False)
    group = pq.read_metadata(path).row_group(0)
    content = path.read_bytes()
    for size in (group.column(2).total_uncompressed_size, group.total_byte_size):
        told = varint(2 * size)
        assert content.count(told) == 1
        content = content.replace(told, varint(2 * 1000, len(told)))
    path.write_bytes(content)
    assert pq.read_metadata(path).row_group(0).column(2).total_uncompressed_size == 1000
    with pytest.raises(DataError, match="column 'text' unpacks to more than 67,108,864 bytes"):
        list(read_passages(path))


def test_a_large_batch_is_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_BYTES", 20_000)
    path = tmp_path / "x.parquet"
    rows = [{"id": str(n), "title": "t", "text": "a" * 1000, "list": ["b" * 500, str(n)]} for n in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert [row for _, row in parquet_rows(path)] == rows


@pytest.mark.parametrize("at", [4, 5, 6, 8, 12, 20, 30])
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_a_damaged_page_is_one_error_or_read(tmp_path: Path, at: int, byte: int) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([{"id": "1", "title": "t", "text": "text"}]), path, compression="none")
    content = bytearray(path.read_bytes())
    content[at] = byte
    path.write_bytes(content)
    try:
        list(read_passages(path))
    except DataError as error:
        assert error.path is not None
