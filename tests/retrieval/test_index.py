"""Index folders: what is built loads and finds the same; what was tampered with is refused, naming the file."""

import dataclasses
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchgym.corpora.passages import corpus_sha256, read_passages
from searchgym.errors import (
    CardError,
    DataError,
    DataMissingError,
    DataWarning,
    IndexMismatchError,
    RunExistsError,
    UsageError,
)
from searchgym.records import Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.backend import Bm25Builder
from searchgym.retrieval.bm25.blocks import TYPES
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import build_in_memory, describe_files, inspect_index, load_index
from searchgym.retrieval.kinds.bm25 import BM25Card

BIRDS = [
    Passage("g", "Gull", "A gull is a bird of the coast."),
    Passage("h", "Heron", "A heron is a bird of the marsh\nand of rivers: \u2028 naïve."),
    Passage("t", "Tern \ud800", "Terns are birds of the coast."),
]
FILES = [
    "passages.jsonl",
    "offsets.npy",
    "ids.npy",
    *(f"bm25/{name}.bin" for name in TYPES),
    "bm25/parameters.json",
    "bm25/vocabulary.json",
]
REMEDY = r"searchgym index build CORPUS --out .* --overwrite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(BIRDS, tmp_path / "birds")
    return tmp_path / "birds"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def part(**facts: Any) -> dict[str, Any]:
    """The manifest's part of BM25, with other facts."""
    found = {"analyser": analysis.NAME, "analyser_version": analysis.VERSION, "stop_words": []} | facts
    return {"card": {"kind": "bm25"}, "facts": found}


def broken_source() -> Iterator[Passage]:
    yield BIRDS[0]
    raise KeyboardInterrupt


def test_a_loaded_index_finds_what_one_in_memory_finds(folder: Path) -> None:
    loaded, kept = load_index(folder), build_in_memory(BIRDS)
    queries = ["bird of the coast", "heron", "albatross", "", "naive naïve rivers", "tern"]
    assert loaded.search(queries, 10) == kept.search(queries, 10)
    assert [hit.passage for hit in loaded.search(["terns"], 1)[0]] == [BIRDS[2]]
    subsets = [np.array([2, 1])] * len(queries)
    assert loaded.search_within(queries, 10, subsets) == kept.search_within(queries, 10, subsets)
    assert len(loaded) == 3


def test_postings_are_memory_mapped(folder: Path) -> None:
    loaded = load_index(folder)
    assert all(isinstance(values, np.memmap) for values in loaded.index.postings)


def test_the_manifest_says_what_was_built(tmp_path: Path) -> None:
    manifest = build_index(BIRDS, tmp_path / "deep" / "down", BM25Card(k1=1.2, b=0.75))
    folder = tmp_path / "deep" / "down"
    written = json.loads((folder / "manifest.json").read_text())
    assert (written["retriever"]["kind"], written["format"]) == ("bm25", 3)
    assert manifest.corpus_sha256 == hashlib.sha256((folder / "passages.jsonl").read_bytes()).hexdigest()
    assert manifest.corpus_sha256 == written["corpus_sha256"] == corpus_sha256(BIRDS)
    card, facts = manifest.parts["bm25"].card, manifest.parts["bm25"].facts
    assert (manifest.passages, card["k1"], card["b"]) == (3, 1.2, 0.75)
    assert (facts["analyser"], facts["analyser_version"]) == (analysis.NAME, analysis.VERSION)
    assert facts["stop_words"] == sorted(analysis.STOP_WORDS)
    assert {"searchgym", "numpy", "PyStemmer"} <= manifest.versions.keys()
    assert sorted(manifest.files) == sorted(FILES)
    assert all((folder / name).stat().st_size == file.bytes for name, file in manifest.files.items())
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {*FILES, "manifest.json"}
    assert load_index(folder).index.k1 == 1.2


def test_inspect_gives_plain_data(folder: Path) -> None:
    described = inspect_index(folder, verify=True)
    assert json.loads(json.dumps(described)) == described
    assert (described["passages"], described["verified"]) == (3, True)
    assert described["bytes"] == sum((folder / name).stat().st_size for name in FILES)
    assert not inspect_index(folder)["verified"]


def test_an_index_may_be_moved(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    assert len(load_index(tmp_path / "elsewhere").search(["heron"], 5)[0]) == 1


def test_the_corpus_can_be_read_back(folder: Path) -> None:
    assert list(read_passages(folder / "passages.jsonl")) == BIRDS


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(IndexMismatchError, match=rf"{name} is missing.*{REMEDY}"):
        load_index(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(IndexMismatchError, match=rf"{name} has \d+ bytes, expected \d+ as in manifest.json.*{REMEDY}"):
        load_index(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named(folder: Path, name: str) -> None:
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / name).write_bytes(raw)
    with pytest.raises(IndexMismatchError, match=rf"{name} is not the file that manifest.json describes.*{REMEDY}"):
        load_index(folder)


def test_a_change_deep_inside_is_found_when_everything_is_verified(tmp_path: Path) -> None:
    big = [Passage(str(i), "", "gull " * 50) for i in range(1000)]
    build_index(big, tmp_path / "big")
    raw = bytearray((tmp_path / "big" / "passages.jsonl").read_bytes())
    assert len(raw) > 4 * 64 * 1024
    raw[len(raw) // 2] ^= 1
    (tmp_path / "big" / "passages.jsonl").write_bytes(raw)
    load_index(tmp_path / "big")  # constant time: the ends of each file only
    with pytest.raises(IndexMismatchError, match=r"passages.jsonl is not the file"):
        inspect_index(tmp_path / "big", verify=True)


def test_another_corpus_manifest_is_refused(folder: Path, tmp_path: Path) -> None:
    build_index([*BIRDS, Passage("x", "", "more")], tmp_path / "other")
    shutil.copy(tmp_path / "other" / "manifest.json", folder / "manifest.json")
    with pytest.raises(IndexMismatchError, match=REMEDY):
        load_index(folder)


def test_another_corpus_of_the_same_size_is_refused(folder: Path, tmp_path: Path) -> None:
    build_index([*BIRDS[:2], Passage("t", BIRDS[2].title, "Terns are birds of the marsh.")], tmp_path / "other")
    for name in ("passages.jsonl", "manifest.json"):
        other = shutil.copytree(folder, tmp_path / name)
        shutil.copy(tmp_path / "other" / name, other / name)
        with pytest.raises(IndexMismatchError, match=r"is not the file that manifest\.json describes"):
            load_index(other)


DECOMPOSED = [Passage("a", "Beyonce\u0301", "A singer."), *BIRDS]


def built_before(passages: list[Passage], out: Path, version: int) -> Path:
    """An index as version 0.1.0 made it, whose postings are not read."""
    build_index(passages, out)
    shutil.rmtree(out / "bm25")
    (out / "bm25").mkdir()
    (out / "bm25" / "data.csc.index.npy").write_bytes(b"scores")
    data = json.loads((out / "manifest.json").read_text())
    data["parts"]["bm25"]["facts"]["analyser_version"] = version
    files = {name: file for name, file in data["files"].items() if not name.startswith("bm25/")}
    described = describe_files(out)
    files["bm25/data.csc.index.npy"] = dataclasses.asdict(described["bm25/data.csc.index.npy"])
    edit(out, parts=data["parts"], files=files, format=2)
    return out


@pytest.mark.parametrize("version", [1, 2])
def test_an_index_of_the_earlier_layout_is_built_again(tmp_path: Path, version: int) -> None:
    with pytest.warns(DataWarning, match="was built by version 0.1.0, and its postings are built again"):
        old = load_index(built_before(DECOMPOSED, tmp_path / "old", version))
    build_index(DECOMPOSED, tmp_path / "new")
    new = load_index(tmp_path / "new")
    queries = ["Beyonce\u0301", "Beyonc\u00e9", "BEYONCE\u0301", "heron"]
    assert old.search(queries, 5) == new.search(queries, 5) and all(map(len, old.search(queries, 5)))
    assert old.identity() == new.identity() and old.identity()["analyser"] == f"{analysis.NAME} 2"


def test_an_index_of_another_analyser_is_refused(folder: Path) -> None:
    edit(folder, parts={"bm25": part(analyser_version=1)})
    with pytest.raises(IndexMismatchError, match=f"was analysed by version 1, this version has 2.*{REMEDY}"):
        load_index(folder)


def test_an_expected_corpus_is_checked(folder: Path) -> None:
    assert len(load_index(folder, corpus_sha256(BIRDS))) == 3
    with pytest.raises(IndexMismatchError, match=f"was built from corpus {corpus_sha256(BIRDS)}, expected abc"):
        load_index(folder, "abc")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 1}, "is of format 1; this version reads 3"),
        ({"parts": {"bm25": part(analyser_version=0)}}, "was analysed by 'lucene-english-porter 0'"),
        ({"parts": {"bm25": part(analyser="other")}}, f"was analysed by 'other {analysis.VERSION}'"),
        ({"parts": {"bm25": part() | {"card": {"kind": "bm26"}}}}, "unknown kind of retriever"),
        ({"retriever": {"kind": "bm25", "k2": 1}}, "k2: unknown key"),
        ({"passages": 4}, "3 and 4 passages"),
        ({"passages": "3"}, "passages: expected an integer, got '3'"),
        ({"surprise": 1}, "surprise: unknown key"),
        ({"corpus_sha256": "0"}, "has inconsistent entries"),
        ({"files": {}}, "has inconsistent entries"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(IndexMismatchError, match=rf"{message}.*{REMEDY}"):
        load_index(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "bm25"}', "\xff"])
def test_a_manifest_that_cannot_be_read_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(IndexMismatchError, match=rf"manifest.json cannot be read.*{REMEDY}"):
        load_index(folder)


def test_a_folder_without_manifest_or_no_folder(tmp_path: Path) -> None:
    with pytest.raises(IndexMismatchError, match=r"is no index, it has no manifest\.json: give a folder"):
        load_index(tmp_path)
    with pytest.raises(DataMissingError, match=r"nowhere: no such index folder: .*searchgym index build"):
        load_index(tmp_path / "nowhere")


def test_arrays_that_are_no_arrays_are_refused(folder: Path) -> None:
    raw = b"not an array"
    (folder / "offsets.npy").write_bytes(raw)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["offsets.npy"] = {
        "bytes": len(raw),
        "fingerprint": hashlib.sha256(b"12\n" + raw + raw).hexdigest(),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }
    edit(folder, files=files)
    with pytest.raises(IndexMismatchError, match=f"cannot be read: .*{REMEDY}"):
        load_index(folder)


# -- building ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passages", [[], [Passage("a", "", "the")]])
def test_nothing_to_index_is_refused_and_leaves_nothing(tmp_path: Path, passages: list[Passage]) -> None:
    with pytest.raises(DataError, match="no word"):
        build_index(passages, tmp_path / "out")
    with pytest.raises(DataError, match="no word"):
        build_in_memory(passages)
    assert list(tmp_path.iterdir()) == []


def test_repeated_ids_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="repeats the id 'g'"):
        build_index([*BIRDS, BIRDS[0]], tmp_path / "out")
    with pytest.raises(DataError, match="repeats the id 'g'"):
        build_in_memory([*BIRDS, BIRDS[0]])
    assert list(tmp_path.iterdir()) == []


def test_impossible_parameters_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(CardError, match="k1: expected at least 0, got -1"):
        build_index(broken_source(), tmp_path / "out", BM25Card(k1=-1))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_source(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_index_is_replaced_only_when_asked(folder: Path) -> None:
    with pytest.raises(RunExistsError, match="--overwrite"):
        build_index(broken_source(), folder)  # refused before anything is read
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_source(), folder, overwrite=True)
    assert len(load_index(folder)) == 3  # an interrupted replacement keeps the old one
    build_index(BIRDS[:2], folder, overwrite=True)
    assert len(load_index(folder)) == 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_is_no_index_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name, error, text in (("thesis", RunExistsError, "files but not an index"), ("file", UsageError, "is a file")):
        with pytest.raises(error, match=text):
            build_index(BIRDS, tmp_path / name, overwrite=True)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    build_index(BIRDS, tmp_path / "empty")
    assert len(load_index(tmp_path / "empty")) == 3


def test_a_second_build_of_a_name_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    def source() -> Iterator[Passage]:
        yield BIRDS[0]
        with pytest.raises(RunExistsError, match="in use by another process"):
            build_index(BIRDS, tmp_path / "out")
        yield BIRDS[1]

    build_index(source(), tmp_path / "out")
    assert len(load_index(tmp_path / "out")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_build_that_waited_finds_what_the_other_has_built(tmp_path: Path) -> None:
    waiting: list[Future[Any]] = []

    def source() -> Iterator[Passage]:
        yield BIRDS[0]
        waiting.append(pool.submit(build_index, BIRDS, tmp_path / "out", wait=60))
        yield BIRDS[1]

    with ThreadPoolExecutor(1) as pool:
        build_index(source(), tmp_path / "out")
        with pytest.raises(
            RunExistsError, match=r"holds an index: --overwrite replaces it \(in Python: overwrite=True\)"
        ):
            waiting[0].result()
    assert len(load_index(tmp_path / "out")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    passages = (Passage(str(i), "", "gull") for i in range(2500))
    build_index(passages, tmp_path / "out", progress=lambda *report: seen.append(report))
    assert seen[:3] == [("reading passages", 1000, 0), ("reading passages", 2000, 0), ("reading passages", 2500, 2500)]
    assert seen[-2:] == [("counting terms", 0, 1), ("merging postings", 2500, 2500)]


# -- shards and interruptions --------------------------------------------------------------------------------------


def pages(count: int) -> list[Passage]:
    """Passages of made-up words; every word of one is in others too."""
    draw = random.Random(0)
    words = [f"w{n}" for n in range(300)]
    return [Passage(f"p{i}", f"page {i % 7}", " ".join(draw.choices(words, k=1 + i % 40))) for i in range(count)]


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file of an index but its manifest."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_bytes_of_an_index_do_not_depend_on_shards(tmp_path: Path) -> None:
    for shard in (1000, 17, 1):
        build_index(pages(60), tmp_path / str(shard), shard=shard)
    whole = contents_of(tmp_path / "1000")
    assert contents_of(tmp_path / "17") == whole
    assert contents_of(tmp_path / "1") == whole


def stopping(passages: list[Passage], after: int) -> Iterator[Passage]:
    for number, passage in enumerate(passages):
        if number == after:
            raise KeyboardInterrupt
        yield passage


def test_a_build_interrupted_three_times_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(pages(100), tmp_path / "whole", shard=10)
    made: list[int] = []
    real = Bm25Builder.add
    monkeypatch.setattr(Bm25Builder, "add", lambda self, n, start, batch: (made.append(n), real(self, n, start, batch)))
    for after in (35, 36, 82):
        with pytest.raises(KeyboardInterrupt):
            build_index(stopping(pages(100), after), tmp_path / "out", shard=10)
        assert not (tmp_path / "out").exists()
        assert [path.name for path in tmp_path.iterdir() if path.name != "whole"] == [".out.building"]
    build_index(pages(100), tmp_path / "out", shard=10)
    assert made == list(range(10))  # no shard was made twice
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(("damage", "packed"), [(flip_bit, True), (cut_short, False), (Path.unlink, False)])
def test_damaged_files_of_an_interrupted_build_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], packed: bool
) -> None:
    monkeypatch.setattr("searchgym.corpora.store.writer.is_packed", lambda lines: packed)
    shard = 300 if packed else 10  # fewer do not give a dictionary
    build_index(pages(4 * shard), tmp_path / "whole", shard=shard)
    with pytest.raises(KeyboardInterrupt):
        build_index(stopping(pages(4 * shard), 3 * shard + 5), tmp_path / "one", shard=shard)
    left = tmp_path / ".one.building"
    names = [path.relative_to(left) for path in sorted(left.rglob("*")) if path.is_file()]
    names = [name for name in names if name.name not in (".lock", ".build.json") and "00001" not in name.name]
    assert len(names) > 10 and (left / "passages.dictionary").exists() == packed
    for name in names:
        shutil.copytree(left, tmp_path / ".out.building")
        damage(tmp_path / ".out.building" / name)
        build_index(pages(4 * shard), tmp_path / "out", shard=shard)
        assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole"), name
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("broken", ["add", "finish", "save"])
def test_a_build_interrupted_while_it_writes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    build_index(pages(50), tmp_path / "whole", shard=10)

    def stop(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    where: Any = {
        "add": "searchgym.retrieval.bm25.backend.save_shard",
        "finish": "searchgym.retrieval.bm25.backend.Files.add",
        "save": "searchgym.retrieval.index.build._complete",
    }[broken]
    with monkeypatch.context() as patch:
        patch.setattr(where, stop)
        with pytest.raises(OSError, match=f"No space left.*{tmp_path / 'out'}"):
            build_index(pages(50), tmp_path / "out", shard=10)
    assert not (tmp_path / "out").exists()
    build_index(pages(50), tmp_path / "out", shard=10)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


def test_an_error_that_the_system_did_not_report_keeps_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise OSError("Lucene cannot index")

    monkeypatch.setattr("searchgym.retrieval.index.build._complete", stop)
    with pytest.raises(OSError, match=r"^Lucene cannot index$"):
        build_index(pages(50), tmp_path / "out", shard=10)


@pytest.mark.parametrize("where", ["shutil.rmtree", "_move"])
def test_a_build_interrupted_when_it_was_complete_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    build_index(pages(50), tmp_path / "whole", shard=10)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"searchgym.retrieval.index.build.{where}", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(pages(50), tmp_path / "out", shard=10)
    assert not (tmp_path / "out").exists()
    with pytest.raises(RunExistsError, match="a finished build of another card or corpus"):
        build_index(pages(49), tmp_path / "out", shard=10)
    with monkeypatch.context() as patch:
        patch.setattr(Bm25Builder, "add", stop)  # nothing is done again
        build_index(pages(50), tmp_path / "out", shard=10)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    assert not list((tmp_path / "out").glob(".*"))


def test_a_build_that_takes_from_elsewhere_goes_on_with_no_other(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(stopping(pages(100), 65), tmp_path / "out", shard=10)
    with pytest.raises(RunExistsError, match="with other settings"):
        build_index(pages(100), tmp_path / "out", shard=10, source="elsewhere")


def test_a_card_that_differs_in_words_only_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(stopping(pages(100), 65), tmp_path / "out", shard=10)
    build_index(pages(100), tmp_path / "out", BM25Card(name="mine", threads=2), shard=10)
    assert len(load_index(tmp_path / "out")) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": {"../bm25": {"card": {"kind": "bm25"}, "facts": {}}}}, "names files outside of the folder"),
        ({"parts": {"other": {"card": {"kind": "bm25"}, "facts": {}}}}, "names no files of other"),
    ],
)
def test_a_manifest_cannot_point_elsewhere(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(IndexMismatchError, match=message):
        load_index(folder)


def test_a_folder_s_own_card_cannot_have_code_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    tool = {"kind": "tool", "function": "evil:main"}
    edit(folder, retriever={"kind": "hybrid", "of": [{"kind": "bm25"}, tool]})
    with pytest.raises(UsageError, match="its own card searches elsewhere too: name one that you trust"):
        load_index(folder)
    assert load_index(folder, card="bm25").search(["heron"], 1)[0]


def test_a_corpus_that_changed_meanwhile_is_built_as_it_is_now(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(stopping(pages(100), 65), tmp_path / "out", shard=10)
    now = [*pages(25), Passage("new", "", "gull"), *pages(40)[26:]]
    build_index(now, tmp_path / "whole", shard=10)
    build_index(now, tmp_path / "out", shard=10)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


def test_a_build_of_other_settings_is_not_thrown_away_unasked(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(stopping(pages(100), 65), tmp_path / "out", shard=10)
    with pytest.raises(RunExistsError, match=r"6 shards of an interrupted build with other settings.*--restart"):
        build_index(pages(100), tmp_path / "out", BM25Card(k1=1.5), shard=10)
    build_index(pages(100), tmp_path / "out", BM25Card(k1=1.5), shard=10, restart=True)
    build_index(pages(100), tmp_path / "whole", BM25Card(k1=1.5))
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_under_its_name_and_goes_on(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from searchgym.retrieval.bm25.backend import Bm25Builder
from searchgym.retrieval.index.build import build_index
from searchgym.records import Passage
def source():
    for i in range(40):
        if i == 25:
            os.kill(os.getpid(), signal.SIGKILL)
        yield Passage(str(i), "", f"gull {i}")
build_index(source(), sys.argv[1], shard=10)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".out.building"]
    build_index((Passage(str(i), "", f"gull {i}") for i in range(40)), tmp_path / "out", shard=10)
    assert len(load_index(tmp_path / "out").search(["gull"], 100)[0]) == 40


# -- compressed passages -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 1,200 passages that are compressed, built in shards that begin anywhere."""
    folder = tmp_path_factory.mktemp("packed") / "index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("searchgym.corpora.store.packed.PACK_FROM", 0)
        build_index(MANY, folder, shard=1001)
    return folder


MANY = [Passage(f"p{n}", f"Bird {n}", f"A bird of {n * n % 97} feathers and {n % 13} nests.") for n in range(1200)]


def test_an_index_with_compressed_passages_is_that_of_the_plain_ones(packed: Path, tmp_path: Path) -> None:
    plain = build_index(MANY, tmp_path / "plain")
    described = inspect_index(packed, verify=True)
    assert described["corpus_sha256"] == plain.corpus_sha256
    assert {"passages.jsonl.zst", "passages.dictionary"} < described["files"].keys()
    assert "passages.jsonl" not in described["files"]
    queries = ["bird 77", "13 feathers", "nests"]
    assert load_index(packed).search(queries, 5) == load_index(tmp_path / "plain").search(queries, 5)


@pytest.mark.parametrize("name", ["passages.jsonl.zst", "passages.dictionary"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_a_damaged_compressed_corpus_is_refused_by_name(
    packed: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    copied = shutil.copytree(packed, tmp_path / "copy")
    damage(copied / name)
    with pytest.raises(IndexMismatchError, match=name):
        load_index(copied)


def test_passages_of_another_corpus_are_noticed_where_they_are_read(packed: Path, tmp_path: Path) -> None:
    """A manifest that describes the files as they are hides the change from a load, not from ``--verify``."""
    copied = shutil.copytree(packed, tmp_path / "copy")
    edit(copied, corpus_sha256="0" * 64)
    load_index(copied)
    with pytest.raises(IndexMismatchError, match="the passages are not those"):
        inspect_index(copied, verify=True)


def test_a_compressed_corpus_that_the_manifest_does_not_name_is_refused(folder: Path, packed: Path) -> None:
    shutil.copy(packed / "passages.jsonl.zst", folder)
    with pytest.raises(IndexMismatchError, match=r"inconsistent entries for .*passages\.jsonl\.zst"):
        load_index(folder)
