"""Files made to be awkward: endless lines, huge documents, many keys. Time and memory stay bounded."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from searchgym.corpora import read_passages
from searchgym.corpora.files import MAX_LINE, iter_jsonl, read_bytes, read_json, sha256_file, text_lines
from searchgym.corpora.rows import sniff
from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import BadLines, DataError, SearchGymError
from searchgym.eval.leaderboard.check import check_submission
from searchgym.eval.retrieval import read_qrels
from searchgym.eval.suites.cards import find_suite
from searchgym.options.yaml import read_yaml
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.worlds.storage import read_world
from searchgym.records import Passage
from searchgym.retrieval import build_index, load_index

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


@pytest.mark.slow
@pytest.mark.parametrize("last", ["a", "99999"])
def test_a_repeated_key_among_many_is_found_in_linear_time(tmp_path: Path, last: str) -> None:
    keys = ["a", *map(str, range(100_000)), last]
    path = tmp_path / "x.json"
    path.write_text("{" + ", ".join(f'"{key}": []' for key in keys) + "}")
    begun = time.process_time()
    with pytest.raises(DataError, match=rf"^{path}: an object has the key '{last}' twice$"):
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
    with pytest.raises(DataError, match=rf"{path.name}:2: unpacks to more than 100 times its size"):
        list(read_passages(path))


def test_blank_lines_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip file of a few kilobytes may hold a good row and then millions of lines."""
    monkeypatch.setattr("searchgym.corpora.files.MAX_LINE", 1 << 16)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "1", "contents": "x"}\n' + b"\n" * (1 << 22)))
    with pytest.raises(DataError, match=rf"{path.name}:\d+: unpacks to more than 100 times its size"):
        list(read_passages(path))


@pytest.mark.slow
def test_the_limit_of_bytes_is_exact_and_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(DataError, match=rf"^{path}: more than 4 bytes: too long to be read whole"):
        read_bytes(path, 4)
    os.truncate(path, 1 << 40)

    def read(call: Callable[[Path], object]) -> None:
        with pytest.raises(DataError, match=r"more than [\d,]+ bytes"):
            call(path)

    for call in (read_bytes, read_json, lambda file: list(text_lines(file)), read_triples):
        assert peak(lambda call=call: read(call)) < 512 * MIB  # of a terabyte


@pytest.mark.parametrize(
    "call",
    [
        read_bytes,
        read_json,
        sha256_file,
        lambda path: list(text_lines(path)),
        lambda path: list(iter_jsonl(path)),
        lambda path: list(read_passages(path)),
        read_qrels,
        lambda path: read_world(path.parent),
        lambda path: load_index(path.parent),
        lambda path: find_suite(str(path)) or read_yaml(path),
        lambda path: check_submission(path.parent),
    ],
)
def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path, call: Callable[[Path], object]) -> None:
    for name in ("x.yaml", "card.yaml", "manifest.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(SearchGymError, match=r"regular file|is no file|is missing"):
        call(tmp_path / "x.yaml")


def test_predictions_that_are_a_pipe_are_refused(tmp_path: Path) -> None:
    made = Path(__file__).parents[2] / "eval/leaderboard/worlds/World/closed-book"
    shutil.copytree(made, tmp_path / "sub")
    (tmp_path / "sub/predictions.jsonl").unlink()
    os.mkfifo(tmp_path / "sub/predictions.jsonl")
    with pytest.raises(DataError, match=r"predictions\.jsonl.*is no regular file"):
        check_submission(tmp_path / "sub")


def test_a_passage_of_gigabytes_is_not_read_from_a_store(tmp_path: Path) -> None:
    build_index([Passage(str(n), "t", "word") for n in range(2)], tmp_path / "index")
    path = tmp_path / "index/passages.jsonl"
    size = path.stat().st_size
    os.truncate(path, size + (1 << 33))
    np.save(tmp_path / "index/offsets.npy", np.array([0, size, size + (1 << 33)]))
    store = PassageStore(tmp_path / "index")
    with pytest.raises(DataError, match=r"passages\.jsonl:2: a line of more than 67,108,864 bytes"):
        store[1]


def test_a_document_on_one_line_may_be_longer_than_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("searchgym.corpora.files.MAX_LINE", 1000)
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"Page": ["x" * 1000], "Other": ["one"]}))
    assert sniff(path) == "json"
    assert [passage.title for passage in read_passages(path)] == ["Page", "Other"]
