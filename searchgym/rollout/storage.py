"""Episode files: one JSON line per episode for text and structure, and one binary sidecar file for token arrays.

``episodes.jsonl`` can be read with any JSON reader. If an episode has tokens, each span in its line has ``"ids":
[offset, count]`` and ``"logp": [offset, count]`` into ``episodes.tokens.bin``: byte offset and number of little-endian
int32 ids or float32 log-probabilities. An episode's arrays are written before its line, so that an interrupted write
leaves at most a partial line, which `EpisodeWriter` removes on resuming.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import dump_line, iter_jsonl
from searchgym.errors import DataError
from searchgym.records import Episode, Span, SpanKind

IDS, LOGP = np.dtype("<i4"), np.dtype("<f4")
"""Types of token ids and log-probabilities on disk."""
BLOCK = 2**16
"""Number of bytes per read in the search for the last line."""
Tokens = bytes | mmap.mmap
NESTED: Final = frozenset({"contexts", "calls", "searches", "answer"})
"""Fields that every line must have."""


def sidecar(path: Path) -> Path:
    """Returns the path of the token file that belongs to an episode file."""
    return path.with_suffix(".tokens.bin")


class EpisodeWriter:
    """Writer that appends episodes to a file; each is complete on disk when `write` returns.

    Args:
        path: Path of ``episodes.jsonl``; a partial last line in it is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        cut_half_line(path)
        self._lines: BinaryIO = path.open("ab")
        self._tokens: BinaryIO | None = None

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, episode: Episode) -> None:
        """Appends one episode to the file; it is complete on disk when this returns."""
        row = dataclasses.asdict(dataclasses.replace(episode, contexts=[]))
        for context in episode.contexts:
            spans = []
            for span in context.spans:
                if span.logp is not None and len(span.logp) != len(span.ids):
                    raise ValueError(f"a span of {len(span.ids)} ids has {len(span.logp)} log-probs")
                locations = {"ids": self._append(span.ids, IDS), "logp": None}
                if span.logp is not None:
                    locations["logp"] = self._append(span.logp, LOGP)
                spans.append({"kind": span.kind, **locations})
            row["contexts"].append({"parent": context.parent, "fork": context.fork, "spans": spans})
        without_usual(without_links(row))
        if self._tokens is not None:
            self._tokens.flush()
        self._lines.write(dump_line(row))
        self._lines.flush()

    def _append(self, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> list[int]:
        """Appends an array to the sidecar; returns [byte offset, number of values]."""
        if self._tokens is None:
            self._tokens = sidecar(self.path).open("ab")
        offset = self._tokens.tell()
        self._tokens.write(np.ascontiguousarray(array, dtype).tobytes())
        return [offset, len(array)]

    def close(self) -> None:
        """Closes the episode file and its sidecar."""
        self._lines.close()
        if self._tokens is not None:
            self._tokens.close()


def cut_half_line(path: Path) -> None:
    """Removes a file's partial last line, which an interrupted write left."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:  # block by block from the end: episode files can be large
            start = max(0, end - BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)


def read_episodes(path: Path, *, tokens: bool = True) -> Iterator[Episode]:
    """Reads the episodes of a file in the order in which they were written.

    Args:
        path: Path of ``episodes.jsonl``.
        tokens: If True, tokens are read too; if False, episodes have no contexts and the sidecar is not opened.

    Raises:
        DataError: A line is not an episode, or its token arrays are not in the sidecar.
    """
    with ExitStack() as opened:
        arrays: Tokens = b""
        try:
            if tokens and sidecar(path).exists() and sidecar(path).stat().st_size:
                file = opened.enter_context(sidecar(path).open("rb"))
                arrays = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read: {error}; copy the run again", sidecar(path)) from error
        for number, row in iter_jsonl(path):
            try:
                if lacking := NESTED - row.keys():
                    raise KeyError(min(lacking))
                yield _reader(Episode)(row if tokens else row | {"contexts": []}, arrays)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise DataError(f"not an episode: {type(error).__name__}: {error}", path, number) from error


USUAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "opens": {"text": "", "matches": 0},
    "searches": {"source": "", "fault": ""},
    "calls": {"ranked": None, "thought_cut": False, "requests": 1},
}
"""Values that are omitted from the records of an episode, since most have them and older files lack the fields."""


def without_usual(row: dict[str, Any]) -> None:
    """Removes the values of `USUAL` from an episode as plain data, in place, and empty lists and confidences."""
    for name, usual in USUAL.items():
        for record in row[name]:
            for key, value in usual.items():
                if record[key] == value:
                    del record[key]
    for name in ("opens", "cites"):
        if not row[name]:
            del row[name]
    if row["replays"] is None:
        del row["replays"], row["replayed"]
    if row["answer"] is not None and row["answer"]["confidence"] is None:
        del row["answer"]["confidence"]


def without_links(row: dict[str, Any]) -> dict[str, Any]:
    """Removes the links of passages from an episode as plain data, in place, and returns it."""
    for search in row["searches"]:
        for hit in search["hits"]:
            del hit["passage"]["links"]
    return row


@functools.cache
def _reader(hint: Any) -> Callable[[Any, Tokens], Any]:
    """Returns the function that builds a value of a type from its JSON form and the sidecar.

    It raises a TypeError for a value of another type. JSON gives whole floats as integers, and literals are text.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Span:
        return _span
    if dataclasses.is_dataclass(hint):
        readers = {name: _reader(each) for name, each in typing.get_type_hints(hint).items()}
        return functools.partial(_record, hint, readers)
    if origin in (types.UnionType, typing.Union):  # of a type and None
        read = _reader(inner[0])
        return lambda value, tokens: None if value is None else read(value, tokens)
    if origin in (list, tuple):
        read = _reader(inner[0])
        return lambda value, tokens: origin([read(each, tokens) for each in _checked(list, value)])
    if origin is dict:
        read = _reader(inner[1])
        return lambda value, tokens: {name: read(each, tokens) for name, each in _checked(dict, value).items()}
    expected = (int, float) if hint is float else str if origin is typing.Literal else hint
    return functools.partial(_checked, expected)


def _checked(expected: Any, value: Any, _: Tokens = b"") -> Any:
    """Returns a value, or raises a TypeError if it has another type."""
    if not isinstance(value, expected):
        raise TypeError(f"it is {value!r:.80}")
    return value


def _record(cls: Any, readers: Mapping[str, Callable[[Any, Tokens], Any]], row: Any, tokens: Tokens) -> Any:
    """Builds a record from its fields by name."""
    values, name = dict(_checked(dict, row)), ""
    try:
        for name in readers:
            if name in values:
                values[name] = readers[name](values[name], tokens)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.{name}: {error}") from error
    return cls(**values)


def _span(row: dict[str, Any], tokens: Tokens) -> Span:
    """Builds a span from its JSON form and its arrays in the sidecar."""
    if row["kind"] not in typing.get_args(SpanKind):
        raise ValueError(f"unknown span kind {row['kind']!r}")
    logp = None if row["logp"] is None else _array(tokens, row["logp"], LOGP)
    return Span(row["kind"], _array(tokens, row["ids"], IDS), logp)


def _array(tokens: Tokens, location: list[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Reads one array of the sidecar."""
    offset, count = location
    if offset < 0 or count < 0 or offset + count * dtype.itemsize > len(tokens):
        raise ValueError(f"{count} values at byte {offset} are past the sidecar's {len(tokens)} bytes")
    return np.frombuffer(tokens, dtype, count, offset).copy()
