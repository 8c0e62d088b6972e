"""Passages on disk: what was written comes back, one at a time, and a file that does not fit is refused."""

import copy
import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchgym.corpora.passages import passage_line
from searchgym.corpora.store import ENDS, IDS, OFFSETS, PASSAGES, PassageStore, PassageWriter, unique
from searchgym.errors import DataError
from searchgym.records import Passage

texts = st.text(st.characters(exclude_categories=[]), max_size=30)


def stored(passages: Iterable[Passage], folder: Path) -> PassageStore:
    with PassageWriter(folder) as writer:
        writer.write([passage_line(passage) for passage in passages])
        return writer.finish()


@pytest.mark.slow
@given(st.lists(st.builds(Passage, texts, texts, texts), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_what_was_written_comes_back(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    store = stored(passages, tmp_path_factory.mktemp("store"))
    assert len(store) == len(passages)
    assert [store[i] for i in range(len(store))] == list(store) == passages


def test_passages_are_written_bit_by_bit_and_taken_back(tmp_path: Path) -> None:
    lines = [passage_line(Passage(str(i), "", f"text {i}")) for i in range(5)]
    with PassageWriter(tmp_path) as writer:
        writer.write(lines[:2])
        writer.write(lines[2:4])
        assert not (tmp_path / OFFSETS).exists()  # incomplete
    with PassageWriter(tmp_path) as writer:  # another process goes on
        writer.cut(3, sum(map(len, lines[:3])))
        writer.write(lines[4:])
        store = writer.finish()
    assert [passage.text for passage in store] == ["text 0", "text 1", "text 2", "text 4"]
    assert [store.position(id) for id in "0124"] == [0, 1, 2, 3]
    assert (tmp_path / PASSAGES).read_bytes() == b"".join([*lines[:3], lines[4]])
    assert sorted(path.name for path in tmp_path.iterdir()) == [ENDS, IDS, OFFSETS, PASSAGES]


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
    monkeypatch.setattr("searchgym.corpora.store.hash_id", lambda id: 7)
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
