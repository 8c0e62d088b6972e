"""Files made to be awkward: endless lines, huge documents, many keys. Time and memory stay bounded."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from searchgym.corpora import read_passages
from searchgym.corpora.files import MAX_LINE, BadLines, iter_jsonl, read_json, sniff
from searchgym.errors import DataError

MIB = 1 << 20


def bomb(path: Path, start: bytes, size: int) -> Path:
    """Writes a small gzip file that unpacks to `start` and `size` letters without a line end."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(size // MIB):
            file.write(b"a" * MIB)
    return path


def peak(call) -> int:
    """Returns the most bytes that Python held during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("last", ["a", "99999"])
def test_a_repeated_key_among_many_is_found_in_linear_time(tmp_path: Path, last: str) -> None:
    keys = ["a", *map(str, range(100_000)), last]
    path = tmp_path / "x.json"
    path.write_text("{" + ", ".join(f'"{key}": []' for key in keys) + "}")
    begun = time.process_time()
    with pytest.raises(DataError, match=rf"^{path}: an object holds the key '{last}' twice$"):
        read_json(path)
    assert time.process_time() - begun < 5  # it took a minute when the search was quadratic


def test_the_limit_of_a_line_is_exact_and_names_the_line(tmp_path: Path) -> None:
    rows = ['{"a": 1}', '{"a": 12345}', '{"a": 2}']
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(rows) + "\n")
    assert len(list(iter_jsonl(path, limit=len(rows[1]) + 1))) == 3
    for bad in (None, BadLines(10)):  # no tolerance for what would have to be unpacked to its end
        with pytest.raises(DataError, match=rf"^{path}:2: a line of more than 12 bytes"):
            list(iter_jsonl(path, bad, limit=len(rows[1])))


def test_the_limit_of_a_document_is_exact(tmp_path: Path) -> None:
    text = '{"a":\n[1, 2]}'
    for content in (text.encode(), gzip.compress(text.encode())):
        path = tmp_path / "x.json"
        path.write_bytes(content)
        assert read_json(path, limit=len(text)) == {"a": [1, 2]}
        with pytest.raises(DataError, match=rf"^{path}:2: a JSON document of more than 12 bytes in a file of"):
            read_json(path, limit=len(text) - 1)


def test_an_endless_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = bomb(tmp_path / "x.jsonl.gz", b'{"id": "1", "contents": "x"}\n{"id": "', 32 * MIB)
    assert path.stat().st_size < MIB

    def read(limit: int) -> None:
        with pytest.raises(DataError, match=rf"{path.name}:2: a line of more than"):
            list(iter_jsonl(path, limit=limit))

    assert peak(lambda: read(MIB)) < 8 * MIB


def test_an_endless_corpus_is_refused_by_its_line(tmp_path: Path) -> None:
    path = bomb(tmp_path / "x.jsonl.gz", b'{"id": "1", "contents": "x"}\n{"id": "', MAX_LINE + MIB)
    with pytest.raises(DataError, match=rf"{path.name}:2: a line of more than 67,108,864 bytes"):
        list(read_passages(path))


def test_a_document_on_one_line_may_be_longer_than_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("searchgym.corpora.files.MAX_LINE", 1000)
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"Page": ["x" * 1000], "Other": ["one"]}))
    assert sniff(path) == "json"
    assert [passage.title for passage in read_passages(path)] == ["Page", "Other"]
