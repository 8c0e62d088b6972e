"""Lucene: finds what BM25 by hand, our own BM25 and pyserini find; builds go on; Java is found and keeps quiet.

Nothing here is skipped: a machine without a JDK fails.
"""

import copy
import importlib
import json
import math
import pickle
import random
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from searchgym.corpora.passages import read_passages
from searchgym.corpora.questions import read_queries
from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import DataMissingError, IndexMismatchError, RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval import wire
from searchgym.retrieval.cards import find_retriever, quiet
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.convert import convert_index
from searchgym.retrieval.index.index import build_in_memory, inspect_index, load_index
from searchgym.retrieval.kinds.lucene import LuceneCard
from searchgym.retrieval.lucene import backend as lucene
from searchgym.retrieval.lucene import build as lucene_build
from searchgym.retrieval.lucene import java
from searchgym.retrieval.lucene.backend import LuceneRetriever, is_lucene, open_lucene

pytestmark = pytest.mark.engine
CARD = {"kind": "lucene", "memory": "256m", "threads": 2}
WORDS = [f"word{number}" for number in range(300)]


def generated(size: int, seed: int = 0) -> list[Passage]:
    """Passages of fewer than 40 words, whose lengths Lucene keeps as they are."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    return [
        Passage(f"p{n}", f"title{n % 50}", " ".join(draw.choices(WORDS, weights, k=draw.randint(3, 35))))
        for n in range(size)
    ]


def questions(size: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))) for _ in range(size)]


def built(passages: list[Passage], folder: Path, **options: Any) -> LuceneRetriever:
    build_index(passages, folder, CARD, **options)
    retriever = load_index(folder)
    assert isinstance(retriever, LuceneRetriever)
    return retriever


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lucene") / "index"
    build_index(generated(2_000), folder, CARD)
    return folder


@pytest.fixture
def retriever(folder: Path) -> LuceneRetriever:
    retriever = load_index(folder)
    assert isinstance(retriever, LuceneRetriever)
    return retriever


class Made:
    """Passages, and the indexes that pyserini's own command makes of them."""

    def __init__(self, folder: Path) -> None:
        self.passages = [
            *(Passage(f"{n}", f'Number "{n % 5}"', p.text) for n, p in enumerate(generated(60))),
            Passage("é\U0001f600", "Zèbre", "zebra \U0001f600 café"),
        ]
        documents = folder / "documents"
        documents.mkdir()
        rows = (json.dumps(wire.document(passage)) for passage in self.passages)
        (documents / "all.jsonl").write_text("\n".join(rows), encoding="utf-8")
        self.raw, self.bare, self.contents = folder / "raw", folder / "bare", folder / "contents"
        main = java.start_java()("io.anserini.index.IndexCollection").main
        for index, more in ((self.raw, ["-storeRaw"]), (self.bare, []), (self.contents, ["-storeContents"])):
            # what `python -m pyserini.index.lucene` calls, after it has imported much
            options = ["-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator"]
            main([*options, "-input", str(documents), "-index", str(index), "-threads", "1", *more])
        build_index(self.passages, folder / "own", {"kind": "bm25"})
        self.store = PassageStore(folder / "own")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("pyserini"))


def pyserini_ids(folder: Path, queries: list[str], k: int) -> list[list[str]]:
    """Returns what pyserini's LuceneSearcher finds: a thin layer around this class."""
    searcher = java.start_java()("io.anserini.search.SimpleSearcher")(str(folder))
    searcher.set_bm25(0.9, 0.4)
    found = [[hit.docid for hit in searcher.search(query, k)] for query in queries]
    searcher.close()
    return found


# -- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_scores_are_those_of_bm25_by_hand(tmp_path: Path) -> None:
    passages = [Passage("a", "", "owl owl fox"), Passage("b", "owl", "hen"), Passage("c", "", "fox hen hen hen cat")]
    k1, b, mean = 0.9, 0.4, (3 + 2 + 5) / 3
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # two of three passages have each of the words

    def weight(count: int, length: int) -> float:
        return idf * count / (count + k1 * (1 - b + b * length / mean))

    expected = [
        [("a", weight(2, 3)), ("b", weight(1, 2))],
        [("c", weight(3, 5)), ("b", weight(1, 2))],
        [("a", weight(1, 3) + weight(2, 3)), ("b", weight(1, 2)), ("c", weight(1, 5))],
        [("a", 2 * weight(2, 3)), ("b", 2 * weight(1, 2))],
    ]
    expected[1].sort(key=lambda pair: -pair[1])
    expected[2].sort(key=lambda pair: -pair[1])
    found = built(passages, tmp_path / "index").search(["owl", "hens", "fox and owl", "owl owls"], 5)
    assert [ids(hits) for hits in found] == [[id for id, _ in pairs] for pairs in expected]
    for hits, pairs in zip(found, expected, strict=True):
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in pairs], rel=1e-6)
    searched = load_index(tmp_path / "index", card=CARD | {"k1": 0.0, "b": 0.0}).search(["owl"], 1)
    assert searched[0][0].score == pytest.approx(idf, rel=1e-6)  # at search, without another build


@pytest.mark.smoke
def test_finds_what_our_bm25_finds(retriever: LuceneRetriever) -> None:
    ours = build_in_memory(generated(2_000))
    shares = []
    queries = questions(200)
    for one, other in zip(retriever.search(queries, 10), ours.search(queries, 10), strict=True):
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], rel=1e-5)
        shares.append(len(set(ids(one)) & set(ids(other))) / len(other))
    assert statistics.mean(shares) > 0.99  # sums that differ in the last bit put a few in another order


def test_finds_nearly_what_our_bm25_finds_in_real_passages(real_data: Path, tmp_path: Path) -> None:
    passages = list(read_passages(real_data / "2wikimultihopqa" / "corpus.json"))
    queries = list(read_queries(real_data / "hotpotqa" / "dev_simplified.json").values())[:500]
    one, other = built(passages, tmp_path / "index").search(queries, 10), build_in_memory(passages).search(queries, 10)
    shares = [len(set(ids(a)) & set(ids(b))) / max(len(a), len(b), 1) for a, b in zip(one, other, strict=True)]
    assert statistics.mean(shares) > 0.95  # Lucene keeps lengths from 40 words on to four significant bits
    for hits, wanted in zip(one, other, strict=True):
        scores = {hit.passage.id: hit.score for hit in wanted}
        assert all(hit.score == pytest.approx(scores.get(hit.passage.id, hit.score), rel=0.08) for hit in hits)


def test_ties_are_in_passage_order_at_the_boundary_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lucene_build, "COMMIT", 7)  # segments of several sizes, merged several times
    passages = [Passage(f"{(n * 37) % 400}", "", "owl" if n % 3 else "owl owl owl") for n in range(400)]
    retriever = built(passages, tmp_path / "index")
    better = [p.id for p in passages if len(p.text) > 3]
    rest = [p.id for p in passages if len(p.text) == 3]
    for k in (1, 5, len(better) + 3, 400, 10_000):
        assert [ids(hits) for hits in retriever.search(["owl", "an owl"], k)] == [(better + rest)[:k]] * 2


HOSTILE = [
    ("", 0),
    ("  \t\n\x00\x07", 0),
    ('"zebra AND (bar', 1),
    ("contents: zebra^", 1),
    ("*", 0),
    ("zeb*", 0),
    ("[zebra TO \\", 1),
    ("\ud800 zebra", 1),
    ("\U0001f600" * 500 + " zebra", 1),
    ("unknown " * 100_000 + "zebra", 1),
    (" ".join(f"unknown{n}" for n in range(20_000)) + " zebra", 1),
    ("z" * 1_000_000, 0),
    ("AND OR NOT", 0),
]


def test_hostile_queries_are_words_like_others(tmp_path: Path) -> None:
    passages = [Passage("\ud800", "\U0001f600" * 50, "Zebras."), Passage("\U0001f600", "", "")]
    retriever = built(passages, tmp_path / "index")
    found = retriever.search([query for query, _ in HOSTILE], 3)
    assert [len(hits) for hits in found] == [size for _, size in HOSTILE]
    assert all(hits == [Hit(passages[0], hits[0].score)] and hits[0].score > 0 for hits in found if hits)


def test_a_score_of_nothing_is_no_hit(tmp_path: Path) -> None:
    passages = [Passage("long", "", "owl " + "hen " * 100_000), *(Passage(f"{n}", "", "hen") for n in range(40))]
    build_index(passages, tmp_path / "index", CARD)
    # a millionth, discounted a thousandfold, is nothing beside 1 in the arithmetic of Lucene's floats
    assert load_index(tmp_path / "index", card=CARD | {"k1": 1e6, "b": 1.0}).search(["owl"], 5) == [[]]
    assert len(load_index(tmp_path / "index").search(["owl"], 5)[0]) == 1


def test_what_cannot_be_searched_is_refused(retriever: LuceneRetriever) -> None:
    with pytest.raises(UsageError, match="queries must be a list of strings, got the string 'owl'"):
        retriever.search("owl", 3)
    with pytest.raises(UsageError, match="k must be at least 1, got 0"):
        retriever.search(["owl"], 0)
    assert retriever.search([], 3) == []


# -- threads, copies -----------------------------------------------------------------------------------------------


def test_many_queries_are_found_as_one_by_one(retriever: LuceneRetriever) -> None:
    queries = questions(300)
    assert retriever.search(queries, 5) == [retriever.search([query], 5)[0] for query in queries]
    few = load_index(retriever.folder.parent, card=CARD | {"threads": 1})
    many = load_index(retriever.folder.parent, card=CARD | {"threads": 5})
    assert few.search(queries, 5) == many.search(queries, 5) == retriever.search(queries, 5)


def test_threads_search_at_once_and_leave_nothing_in_java(retriever: LuceneRetriever) -> None:
    queries, count = questions(40), java.start_java()("java.lang.Thread").activeCount
    expected, before = retriever.search(queries, 5), count()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: retriever.search(queries, 5), range(24))) == [expected] * 24
    assert count() == before


def test_copies(retriever: LuceneRetriever) -> None:
    assert copy.deepcopy(retriever) is retriever
    other = pickle.loads(pickle.dumps(retriever))
    assert other.search(["word1"], 3) == retriever.search(["word1"], 3)
    assert (
        (len(other), other.corpus_sha256) == (len(retriever), retriever.corpus_sha256) == (2_000, other.corpus_sha256)
    )
    assert list(retriever.passages()) == generated(2_000)
    assert retriever.passage(1_999) == generated(2_000)[-1]
    assert retriever.identity() == {"kind": "lucene", "k1": 0.9, "b": 0.4, "analyser": "DefaultEnglishAnalyzer"}
    assert retriever.in_process and retriever.corpus_sha256


def test_what_java_throws_is_a_fault_of_the_retriever(retriever: LuceneRetriever) -> None:
    retriever._reader.close()
    with pytest.raises(RetrieverError, match=r"Lucene failed in .*: this IndexReader is closed"):
        retriever.search(["word1"], 3)


# -- building ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_an_interrupted_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    monkeypatch.setattr(lucene_build, "COMMIT", 60)
    monkeypatch.setattr(lucene_build, "REPORT", 10)
    passages, told = generated(500), []

    def until(last: int) -> Callable[[str, int, int], None]:
        def progress(stage: str, done: int, whole: int) -> None:
            if stage == "indexing by Lucene":
                assert whole == 500
                told.append(done)
                if done == last:
                    raise fault

        return progress

    for last in (50, 130, 370):
        with pytest.raises(fault):
            build_index(passages, tmp_path / "cut", CARD, shard=100, progress=until(last))
        assert not (tmp_path / "cut").exists()
    cut = built(passages, tmp_path / "cut", shard=100, progress=until(-1))
    assert [told[told.index(last) + 1] for last in (50, 130, 370)] == [0, 120, 360]  # the last commits
    assert told[-1] == 500
    whole = built(passages, tmp_path / "whole")
    assert cut.search(questions(50), 20) == whole.search(questions(50), 20)
    assert cut.corpus_sha256 == whole.corpus_sha256
    assert not list(tmp_path.rglob("write.lock"))


def test_what_was_left_broken_is_told(made: Made, tmp_path: Path) -> None:
    (tmp_path / "segments_1").write_bytes(b"no segments")
    maker = lucene_build.LuceneBuilder(LuceneCard(), tmp_path, tmp_path, quiet)
    with pytest.raises(OSError, match=r"Lucene cannot index: .*--restart"):
        maker.finish(1, made.store)


def test_the_manifest_says_how_it_was_built(folder: Path) -> None:
    part = json.loads((folder / "manifest.json").read_text())["parts"]["lucene"]
    assert part["facts"]["analyser"] == "DefaultEnglishAnalyzer"
    assert part["facts"]["lucene"].startswith("9.")
    assert is_lucene(folder / "lucene") and not is_lucene(folder) and not is_lucene(folder / "manifest.json")


def test_needs_are_enough(folder: Path) -> None:
    text = sum(len(p.title) + len(p.text) for p in generated(2_000))
    needs = lucene.needs(LuceneCard(memory="1g"), 2_000, text)
    assert needs.disk >= sum(file.stat().st_size for file in (folder / "lucene").iterdir())
    assert needs.memory > 2**30


def test_pyserini_can_search_a_part(tmp_path: Path) -> None:
    names = ["b", "10", "é", "9", "a", "\U0001f600", "\uffee"]
    built([*(Passage(name, "", "owl") for name in names), Passage("best", "", "owl owl")], tmp_path / "index")
    found = pyserini_ids(tmp_path / "index" / "lucene", ["owls", "hen"], 8)
    assert found == [["best", *sorted(names, key=str.encode)], []]


# -- damaged -------------------------------------------------------------------------------------------------------


def opened(folder: Path) -> LuceneRetriever:
    return lucene.load(LuceneCard(), folder / "lucene", {}, PassageStore(folder), "", quiet)


@pytest.mark.parametrize("suffix", ["si", "cfs", "cfe"])
def test_a_damaged_part_is_refused(folder: Path, tmp_path: Path, suffix: str) -> None:
    copied = shutil.copytree(folder, tmp_path / "copy")
    (file,) = (copied / "lucene").glob(f"*.{suffix}")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(IndexMismatchError, match="lucene cannot be read: "):
        opened(copied)
    file.unlink()
    with pytest.raises(IndexMismatchError, match="lucene cannot be read: "):
        opened(copied)


def test_a_part_of_other_passages_is_refused(folder: Path, tmp_path: Path) -> None:
    for size, problem in ((1_999, "counts 1999 passages, not 2000"), (2_000, "differs from the corpus in passage 0")):
        passages = [Passage(f"q{n}", "", p.text) for n, p in enumerate(generated(size))]
        other = tmp_path / str(size)
        build_index(passages, other, CARD)
        copied = shutil.copytree(folder, tmp_path / f"copy{size}", ignore=lambda *_: ["lucene"])
        shutil.copytree(other / "lucene", copied / "lucene")
        with pytest.raises(IndexMismatchError, match=problem):
            opened(copied)


# -- indexes of pyserini -------------------------------------------------------------------------------------------


def test_an_index_of_pyserini_is_searched_as_by_pyserini(made: Made) -> None:
    queries = [*questions(40), *WORDS[:10], "number", "number 3", "zebra café", "nothing"]
    ours = open_lucene(made.raw).search(queries, 7)
    assert [ids(hits) for hits in ours] == pyserini_ids(made.raw, queries, 7)
    assert open_lucene(made.bare, made.store).search(queries, 7) == ours
    assert open_lucene(made.contents).search(queries, 7) == ours
    assert {hit.passage for hits in ours for hit in hits} <= set(made.passages)
    assert ours[-2][0].passage == made.passages[-1]


@pytest.mark.parametrize("name", ["raw", "contents"])
def test_stored_documents_are_the_passages(made: Made, name: str) -> None:
    retriever = open_lucene(getattr(made, name))
    assert list(retriever.passages()) == made.passages
    assert len(retriever) == len(made.passages)
    assert [retriever.passage(n) for n in (0, 17, 60)] == [made.passages[n] for n in (0, 17, 60)]
    with pytest.raises(IndexError, match="position 61 of 61 passages"):
        retriever.passage(61)
    assert retriever.corpus_sha256 is None
    assert pickle.loads(pickle.dumps(retriever)).search(["zebra"], 1) == retriever.search(["zebra"], 1)


def test_without_stored_documents_the_corpus_is_asked_for(made: Made, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bare stores no documents: give the corpus .* --storeRaw"):
        open_lucene(made.bare)
    assert list(open_lucene(made.bare, made.store).passages()) == made.passages
    build_index([Passage("other", "", "other")], tmp_path / "other", {"kind": "bm25"})
    with pytest.raises(IndexMismatchError, match=r"bare holds '0', which is not a passage of the given corpus"):
        open_lucene(made.bare, PassageStore(tmp_path / "other"))
    ends = [made.passages[0], made.passages[-1]]
    build_index(ends, tmp_path / "ends", {"kind": "bm25"})
    with pytest.raises(RetrieverError, match="which is not a passage of the given corpus"):
        open_lucene(made.bare, PassageStore(tmp_path / "ends")).search(["number"], 50)


@pytest.mark.parametrize(("name", "with_corpus"), [("bare", True), ("raw", True), ("raw", False), ("contents", False)])
def test_an_index_of_pyserini_becomes_an_index_folder(made: Made, tmp_path: Path, name: str, with_corpus: bool) -> None:
    source: Path = getattr(made, name)
    corpus = made.raw.parent / "documents" / "all.jsonl" if with_corpus else None
    convert_index(source, tmp_path / "out", CARD, corpus)
    found = load_index(tmp_path / "out")
    queries = ["number", "zebra café", *questions(20)]
    assert found.search(queries, 7) == open_lucene(source, made.store).search(queries, 7)
    assert list(found.passages()) == made.passages
    inspect_index(tmp_path / "out", verify=True)


def test_an_index_of_another_corpus_does_not_become_a_folder(made: Made, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"id": "x", "contents": "other"}\n')
    with pytest.raises(IndexMismatchError, match="which is not a passage of the given corpus"):
        convert_index(made.bare, tmp_path / "out", CARD, tmp_path / "other.jsonl")
    with pytest.raises(UsageError, match="--storeRaw"):
        convert_index(made.bare, tmp_path / "out", CARD)
    with pytest.raises(UsageError, match="has no such part"):
        convert_index(made.raw, tmp_path / "out", "bm25")
    assert not (tmp_path / "out").exists()


def test_cards_that_stand_on_lucene(made: Made) -> None:
    noisy = open_lucene(made.raw, None, {"kind": "noise", "of": CARD, "start": 0.0})
    assert noisy.search(["zebra"], 2) == open_lucene(made.raw).search(["zebra"], 2)
    with pytest.raises(UsageError, match="is only a Lucene index: it has no part of kind 'bm25'"):
        open_lucene(made.raw, None, {"kind": "bm25"})
    with pytest.raises(UsageError, match="HttpRetriever searches elsewhere"):
        open_lucene(made.raw, None, find_retriever("http://localhost:1/retrieve"))
    assert open_lucene(made.raw, None, CARD | {"k1": 0.0}).search(["number"], 1)[0][0].score == pytest.approx(
        math.log(1 + 1.5 / 60.5), rel=1e-5
    )


def test_a_folder_without_an_index_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="holds no Lucene index"):
        open_lucene(tmp_path)
    (tmp_path / "segments_1").write_bytes(b"nothing of Lucene's")
    with pytest.raises(IndexMismatchError, match="cannot be read"):
        open_lucene(tmp_path)


# -- Java ----------------------------------------------------------------------------------------------------------


def jdk(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    home.mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place in which JDKs are looked for."""
    monkeypatch.setattr(java, "PLACES", (str(tmp_path / "jvm"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    yield tmp_path / "jvm"


def test_the_newest_fit_jdk_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk(place / "a-17", "17.0.9")
    jdk(place / "z-99", "99", modules="java.base")
    (place / "none").mkdir()
    with pytest.raises(UsageError, match=r"no JDK 21 or newer .*openjdk-21-jdk.*adoptium\.net.*set JAVA_HOME"):
        java.find_jdk()
    old = jdk(place / "old", "21.0.1")
    assert java.find_jdk() == old
    mac = jdk(place / "new.jdk" / "Contents" / "Home", "25")
    assert java.find_jdk() == mac
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.find_jdk() == old
    monkeypatch.setenv("JAVA_HOME", str(place / "a-17"))
    assert java.find_jdk() == mac


def test_the_java_on_the_path_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = jdk(place.parent / "elsewhere", "22")
    (home / "bin").mkdir()
    (home / "bin" / "java").write_text("")
    (home / "bin" / "java").chmod(0o755)
    (place.parent / "bin").mkdir()
    (place.parent / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_jdk() == home


def test_without_a_jdk_or_pyserini_what_to_install_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = importlib.import_module("jnius_config")
    with monkeypatch.context() as patch:
        patch.setattr(config, "vm_running", False)
        with pytest.raises(UsageError, match="no JDK 21 or newer"):
            build_index(generated(3), place / "index", CARD)
    monkeypatch.setitem(sys.modules, "pyserini.setup", None)
    with pytest.raises(UsageError, match=r"pip install -e .*\[lucene\]"):
        build_index(generated(3), place / "index", CARD)


@pytest.mark.parametrize("memory", ["", "2", "2q", "-1g", "1k", "999999t", "2 g", "lots"])
def test_a_memory_that_is_none_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="memory of Java must be a size such as 512m or 2g"):
        java.start_java(memory)


def test_java_starts_once_whoever_asks() -> None:
    started: list[Any] = []
    threads = [threading.Thread(target=lambda: started.append(java.start_java("1g"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == [java.start_java("64m")] * 4


APART = """
import gc, os, signal, sys, threading
from searchgym.retrieval.index.index import inspect_index, load_index
from searchgym.retrieval.index.build import build_index
from searchgym.errors import RetrieverError
from searchgym.records import Passage

build_index([Passage("a", "", "owl"), Passage("b", "", "hen")], sys.argv[1], {"kind": "lucene", "memory": "64m"})
retriever = load_index(sys.argv[1])
assert [hit.passage.id for hit in retriever.search(["hen"] * 9, 2)[8]] == ["b"]
if not (child := os.fork()):
    try:
        retriever.search(["hen"], 2)
    except RetrieverError as error:
        assert "forked" in str(error)
        del retriever, error
        gc.collect()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
try:
    signal.raise_signal(signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(20)
except KeyboardInterrupt:
    sys.exit(9)
"""


def test_java_prints_nothing_takes_no_signals_and_bears_forks(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", APART, str(tmp_path / "index")], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 9)
