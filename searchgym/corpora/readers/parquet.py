"""Reads parquet files in bounded memory.

A few kilobytes of parquet can expand to gigabytes: a page of one repeated letter, a text that many rows share, a list
of a billion equal numbers. The page sizes in the file's footer may be forged, so the headers of the pages themselves
are checked before Arrow unpacks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from searchgym.errors import DataError, UsageError
from searchgym.packages import install_command
from searchgym.reading import open_file

MAX_BYTES: Final = 1 << 26
"""Bytes of memory allowed for a row, and for the pages of a row group, whatever the size of the file."""
RATIO: Final = 100
"""Allowed ratio of a row group's pages in memory to their bytes in the file; texts reach about ten."""
SHARED: Final = 1000
"""Allowed ratio of all rows in memory to the bytes of the file, in which a text that rows share is stored once."""
ROWS: Final = 1024
"""Number of rows read at once."""
_HEADER: Final = 1 << 16
"""Maximum length of a page header, in bytes."""


def parquet_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the rows of a parquet file with their 1-based numbers.

    Raises:
        DataError: The file is damaged; or a row, or the pages of a row group, would take more memory than allowed.
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise UsageError(f"{path} is a parquet file: reading it needs {install_command('train')}") from None
    number = 0
    try:
        for number, row in enumerate(_rows(str(path)), start=1):
            yield number, row
    except DataError as error:
        raise DataError(f"after row {number}: {error.reason}: download or create the file again", path) from None
    except (pyarrow.ArrowException, OSError) as error:
        reason = f"damaged parquet data after row {number} ({error}): download or create the file again"
        raise DataError(reason, path) from error


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a parquet file."""
    import pyarrow.parquet

    with open_file(path) as file, pyarrow.parquet.ParquetFile(path) as table:
        size = file.seek(0, 2)
        plain = table.schema_arrow
        columns = [table.schema.column(number) for number in range(len(table.schema))]
        for number in range(table.metadata.num_row_groups):
            _check_group(file, table.metadata.row_group(number), columns)
    left = max(4 * MAX_BYTES, SHARED * size)
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as table:  # stores a shared text once
        for number in range(table.num_row_groups):  # Arrow cannot combine nested texts of two groups
            for batch in table.iter_batches(batch_size=ROWS, row_groups=[number]):
                whole = _size(batch.to_struct_array())
                left -= whole
                if left < 0:
                    raise DataError(
                        f"its rows share texts of more than {max(4 * MAX_BYTES, SHARED * size):,} bytes in all"
                    )
                # without shared texts the conversion is ten times as fast
                yield from batch.cast(plain).to_pylist() if whole <= MAX_BYTES else _one_by_one(batch)


def _one_by_one(batch: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch that takes much memory as a whole."""
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        if _size(row.to_struct_array()) > MAX_BYTES:
            raise DataError(f"a row of more than {MAX_BYTES:,} bytes")
        yield from row.to_pylist()


def _size(array: Any) -> int:
    """Returns the size of an array's values in bytes; shared texts count once per row."""
    import pyarrow.compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        compute: Any = pyarrow.compute
        lengths = compute.binary_length(array.dictionary)
        return int(compute.sum(lengths.take(array.indices)).as_py() or 0)
    if pyarrow.types.is_struct(kind):
        return sum(map(_size, array.flatten()))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return 8 * len(array) + _size(array.flatten())
    return int(array.get_total_buffer_size() if pyarrow.types.is_map(kind) else array.nbytes)


def _check_group(file: BinaryIO, group: Any, columns: list[Any]) -> None:
    """Refuses a row group whose pages would take more memory than allowed."""
    packed = unpacked = 0
    for number, column in enumerate(columns):
        chunk = group.column(number)
        packed += chunk.total_compressed_size
        unpacked += _pages(file, chunk)
        if column.max_repetition_level:  # a row may hold any number of them
            unpacked += 8 * chunk.num_values
        if unpacked > max(MAX_BYTES, RATIO * packed):
            raise DataError(
                f"column {column.path!r:.80} unpacks to more than {max(MAX_BYTES, RATIO * packed):,} bytes, the "
                f"limit for a row group of {packed:,} bytes in the file"
            )


def _pages(file: BinaryIO, chunk: Any) -> int:
    """Returns the unpacked size of a column's pages in bytes, according to the page headers."""
    at = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end, total = at + chunk.total_compressed_size, 0
    while at < end:
        file.seek(at)
        header = _Header(file.read(_HEADER))
        unpacked, packed = header.sizes()
        if unpacked < 0 or packed < 0:
            raise DataError("a page has a negative size")
        total += unpacked
        at += header.at + packed
    return total


class _Header:
    """Header of a page, in Thrift's compact form (thrift-compact-protocol.md of https://github.com/apache/thrift)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        """Position of the next byte to read."""

    def sizes(self) -> tuple[int, int]:
        """Reads the whole header and returns the size of the page in bytes, unpacked and in the file.

        Raises:
            DataError: The bytes are not a page header.
        """
        sizes = {2: -1, 3: -1}
        try:
            for number, kind in self._fields():
                if number in sizes and kind == 5:
                    sizes[number] = self._number()
                else:
                    self._skip(kind, 0)
        except IndexError:
            raise DataError(f"a page whose header is damaged or longer than {_HEADER:,} bytes") from None
        return sizes[2], sizes[3]

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yields number and type of each field; the caller must then read its value."""
        number = 0
        while head := self._byte():
            if head >> 4:
                number += head >> 4
            else:
                number = self._number()
            yield number, head & 15

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    def _number(self) -> int:
        """Returns a signed integer."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        """Skips a value."""
        if depth > 8:
            raise IndexError
        if kind in (3, 4, 5, 6):
            _ = self._byte() if kind == 3 else self._varint()
        elif kind == 7:
            self.at += 8
        elif kind == 8:
            length = self._varint()  # which moves the position
            self.at += length
        elif kind in (9, 10):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else min(self._varint(), _HEADER)):
                self._skip(head & 15, depth + 1)
        elif kind == 12:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        elif kind not in (1, 2):  # booleans, whose value is in the type
            raise IndexError
