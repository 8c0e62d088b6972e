"""Passages on disk: what was written comes back, one at a time, and a file that does not fit is refused."""

import copy
import hashlib
import pickle
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchgym.corpora.passages import corpus_sha256, passage_line
from searchgym.corpora.store.packed import DICTIONARY, PACKED, train_dictionary
from searchgym.corpora.store.reader import IDS, OFFSETS, PASSAGES, PassageStore
from searchgym.corpora.store.writer import ENDS, HASHES, PassageWriter, unique
from searchgym.errors import DataError
from searchgym.records import Passage

texts = st.text(st.characters(exclude_categories=[]), max_size=30)


def write(writer: PassageWriter, passages: Sequence[Passage]) -> None:
    writer.write([passage_line(passage) for passage in passages], [passage.id for passage in passages])


def stored(passages: Iterable[Passage], folder: Path) -> PassageStore:
    with PassageWriter(folder) as writer:
        write(writer, list(passages))
        return writer.finish()


@pytest.mark.slow
@given(st.lists(st.builds(Passage, texts, texts, texts), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_what_was_written_comes_back(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    store = stored(passages, tmp_path_factory.mktemp("store"))
    assert len(store) == len(passages)
    assert [store[i] for i in range(len(store))] == list(store) == passages


def test_passages_are_written_bit_by_bit_and_taken_back(tmp_path: Path) -> None:
    passages = [Passage(str(i), "", f"text {i}") for i in range(5)]
    lines = [passage_line(passage) for passage in passages]
    with PassageWriter(tmp_path) as writer:
        write(writer, passages[:2])
        write(writer, passages[2:4])
        assert not (tmp_path / OFFSETS).exists()  # incomplete
    with PassageWriter(tmp_path) as writer:  # another process goes on
        writer.cut(3)
        write(writer, passages[4:])
        store = writer.finish()
    assert [passage.text for passage in store] == ["text 0", "text 1", "text 2", "text 4"]
    assert [store.position(id) for id in "0124"] == [0, 1, 2, 3]
    assert (tmp_path / PASSAGES).read_bytes() == b"".join([*lines[:3], lines[4]])
    assert sorted(path.name for path in tmp_path.iterdir()) == [ENDS, HASHES, IDS, OFFSETS, PASSAGES]


def test_passages_are_found_by_id(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = stored([Passage(str(i), "", f"text {i}") for i in range(12)], tmp_path / "plain")
    assert [plain.position(str(i)) for i in range(12)] == list(range(12))
    assert not (tmp_path / "plain" / IDS).exists()
    for absent in ("12", "-1", "01", "a", ""):
        with pytest.raises(KeyError):
            plain.position(absent)
    (tmp_path / "named").mkdir()
    named = stored([Passage(f"p{i}", "", f"text {i}") for i in range(100)], tmp_path / "named")
    assert [named.position(f"p{i}") for i in range(100)] == list(range(100))
    for absent in ("p100", "0", ""):
        with pytest.raises(KeyError):
            named.position(absent)


def test_two_ids_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reader", "writer"):
        monkeypatch.setattr(f"searchgym.corpora.store.{module}.hash_id", lambda id: 7)
    store = stored([Passage(id, "", "") for id in "abc"], tmp_path)
    assert [store.position(id) for id in "cab"] == [2, 0, 1]
    with pytest.raises(KeyError):
        store.position("d")


def test_offsets_are_those_of_the_lines(tmp_path: Path) -> None:
    stored([Passage("a", "é", "1"), Passage("b", "", "22")], tmp_path)
    lines = (tmp_path / PASSAGES).read_bytes().splitlines(keepends=True)
    assert np.load(tmp_path / OFFSETS).tolist() == [0, len(lines[0]), len(lines[0]) + len(lines[1])]


@pytest.mark.parametrize("position", [-1, 2, 10**9])
def test_a_position_that_is_not_there(tmp_path: Path, position: int) -> None:
    store = stored([Passage("a", "", "1"), Passage("b", "", "2")], tmp_path)
    with pytest.raises(IndexError, match="of 2 passages"):
        store[position]


def test_several_are_read_together(tmp_path: Path) -> None:
    passages = [Passage(f"p{i}", "", f"text {i}", ((0, 4, "p1"),) if i % 2 else ()) for i in range(9)]
    store = stored(passages, tmp_path)
    for positions in ([], [4], [8, 0, 8, 3]):
        read = store.read(positions)
        assert read == [passages[position] for position in positions]
        assert [passage.links for passage in read] == [passages[position].links for position in positions]
    for absent in (-1, 9):
        with pytest.raises(IndexError, match="of 9 passages"):
            store.read([2, absent])


@pytest.mark.parametrize("line", [b'{"id": "p1"}', b"[]", b'"', b'{"id": "p1", "title": "", "text": ""}, {}', b"\xff"])
def test_a_bad_line_among_several_names_itself(tmp_path: Path, line: bytes) -> None:
    stored([Passage(f"p{i}", "", "x" * 50) for i in range(3)], tmp_path)
    lines = (tmp_path / PASSAGES).read_bytes().splitlines(keepends=True)
    lines[1] = line.ljust(len(lines[1]) - 1) + b"\n"
    (tmp_path / PASSAGES).write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=rf"{PASSAGES}:2: not a passage"):
        PassageStore(tmp_path).read([0, 1, 2])


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    stored([Passage("a", "", "1"), Passage("b", "", "2")], tmp_path)
    with (tmp_path / PASSAGES).open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="does not fit"):
        PassageStore(tmp_path)


def test_a_line_that_was_changed_names_itself(tmp_path: Path) -> None:
    stored([Passage("a", "", "1"), Passage("b", "", "2")], tmp_path)
    raw = (tmp_path / PASSAGES).read_bytes()
    (tmp_path / PASSAGES).write_bytes(raw.replace(b'"b"', b'"b,'))
    store = PassageStore(tmp_path)
    assert store[0].id == "a"
    with pytest.raises(DataError, match=rf"{PASSAGES}:2: not a passage"):
        store[1]


def test_copies_and_pickles_open_the_same_files(tmp_path: Path) -> None:
    store = stored([Passage("a", "", "1")], tmp_path)
    assert copy.deepcopy(store)[0] == pickle.loads(pickle.dumps(store))[0] == store[0]


def test_unique_names_the_second_of_two_equal_ids() -> None:
    passages = [Passage("a", "", ""), Passage("b", "", ""), Passage("a", "other", "text")]
    with pytest.raises(DataError, match=r"passage 2 \(from 0\) repeats the id 'a'"):
        list(unique(passages))
    assert list(unique(passages[:2])) == passages[:2]


@pytest.mark.parametrize(
    ("ids", "again"),
    [("0 1 2 1", 3), ("0 1 x 3 x", 4), ("0 1 x 1", 3), ("x 0 1 0", 3), ("0 1 x 3 3", 4), ("1 1", 1), ("0 1 0", 2)],
)
def test_an_id_that_is_a_position_is_not_repeated_either(ids: str, again: int) -> None:
    passages = [Passage(id, "", "") for id in ids.split()]
    with pytest.raises(DataError, match=rf"passage {again} \(from 0\) repeats"):
        list(unique(passages))
    assert list(unique(passages[:again])) == passages[:again]
    different = [Passage(id, "", "") for id in ("0", "1", "01", "+1", "x", "9" * 30, "3")]
    assert list(unique(different)) == different


# -- compressed passages -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> list[Passage]:
    words = [f"word{n * n % 977}" for n in range(30)]
    return [Passage(f"p{n}", f"Page {n}", " ".join(words[n % 7 : 3 + n % 23])) for n in range(2_500)]


@pytest.fixture
def packed(many: list[Passage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PassageStore:
    monkeypatch.setattr("searchgym.corpora.store.packed.PACK_FROM", 0)
    return stored(many, tmp_path)


def test_a_large_corpus_is_compressed_line_by_line(many: list[Passage], packed: PassageStore, tmp_path: Path) -> None:
    lines = b"".join(map(passage_line, many))
    assert list(packed) == many
    assert packed.position("p2400") == 2400
    assert packed.sha256() == corpus_sha256(many) == hashlib.sha256(lines).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == [ENDS, HASHES, IDS, OFFSETS, DICTIONARY, PACKED]
    assert (tmp_path / PACKED).stat().st_size < len(lines) / 2
    with ThreadPoolExecutor(8) as pool:  # a decompressor of one thread is of no use to another
        assert list(pool.map(packed.__getitem__, [*range(2_500)] * 4, chunksize=50)) == many * 4


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_zstd_restores_a_compressed_corpus(many: list[Passage], packed: PassageStore, tmp_path: Path) -> None:
    command = ["zstd", "-d", "-c", "-D", tmp_path / DICTIONARY, tmp_path / PACKED]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"".join(map(passage_line, many))


def test_a_compressed_corpus_goes_on_where_it_was_cut(
    many: list[Passage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("searchgym.corpora.store.packed.PACK_FROM", 0)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir(), pieces.mkdir()
    stored(many, whole)
    with PassageWriter(pieces) as writer:
        write(writer, many[:2_000])
        write(writer, many[1_000:1_500])  # wrong, and cut again
    with PassageWriter(pieces) as writer:
        writer.cut(2_000)
        write(writer, many[2_000:])
        assert list(writer.finish()) == many
    with PassageWriter(pieces) as writer:
        writer.cut(0)
        write(writer, many[:3])  # too few to be compressed
        assert list(writer.finish()) == many[:3]
        assert not (pieces / PACKED).exists()
    with PassageWriter(pieces) as writer, pytest.raises(DataError, match=rf"{ENDS}.*has 3 passages, not 4"):
        writer.cut(4)


@pytest.mark.parametrize("damage", [b"", b"x" * 400, b"\x28\xb5\x2f\xfd" + b"\xff" * 400])
def test_a_damaged_frame_names_itself(packed: PassageStore, tmp_path: Path, damage: bytes) -> None:
    raw, offsets = bytearray((tmp_path / PACKED).read_bytes()), np.load(tmp_path / OFFSETS)
    start, end = offsets[7:9].tolist()
    raw[start:end] = damage[: end - start].ljust(end - start, b"\0")
    (tmp_path / PACKED).write_bytes(raw)
    store = PassageStore(tmp_path)
    assert store[6].id == "p6" and store[8].id == "p8"
    with pytest.raises(DataError, match=rf"{PACKED}:8: "):
        store[7]


def test_a_dictionary_of_other_lines_is_refused(packed: PassageStore, many: list[Passage], tmp_path: Path) -> None:
    for other in (train_dictionary([passage_line(p) for p in many[::-1]][:1500]), b"", b"foreign" * 99):
        (tmp_path / DICTIONARY).write_bytes(other)
        with pytest.raises(DataError, match=f"{PACKED}:1: not a compressed line"):
            PassageStore(tmp_path)
