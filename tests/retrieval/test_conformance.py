"""Every back end, opened from its card, answers as a retriever has to; a part that is damaged is refused.

The back ends are real: Lucene, FAISS with MiniLM, a server in a process of its own, a run that was recorded.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from back_ends import (
    ABOVE,
    ALL,
    BM25,
    CARDS,
    ENV,
    LUCENE,
    ODD_QUERIES,
    PARTS,
    PASSAGES,
    QUERIES,
    QUESTIONS,
    TITLES,
    VARIANTS,
)

import searchgym
from searchgym.agents.base import LoadedAgent
from searchgym.corpora.store.reader import PassageStore
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.errors import DataMissingError, IndexMismatchError, RetrieverError, SearchGymError, UsageError
from searchgym.eval.runner import evaluate
from searchgym.records import Answer, Hit, Passage, Question, Search
from searchgym.retrieval import encoders
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import MANIFEST, describe_files, load_index
from searchgym.retrieval.kinds.http import HttpRetriever
from searchgym.retrieval.lucene.backend import open_lucene
from searchgym.retrieval.retriever import CorpusRetriever, Retriever, at_step, identify
from searchgym.testing import RetrieverTests, assert_same_hits

REMEDY = r"searchgym index build CORPUS --out .* --overwrite"
TOLERANCE = {"flat": 1e-5, "ivf-sq8": 1e-5, "hnsw": 1e-5, "rerank": 1e-5, "hybrid": 1e-3}
"""Of a score, where it depends on what else is in the batch: the rounding of sums; for hybrid a rank, where two tie."""
MANY = {"bm25": 100_000, "cache": 100_000, "recorded": 100_000, "retrieve": 1_000, "search": 1_000}
"""Queries of one call; else 20,000, and 300 where they are encoded."""
LEXICAL = [name for name in CARDS if name not in ("flat", "ivf-sq8", "hnsw", "hybrid", "rerank", "search")]
NOTHING = ["empty", "blank", "stop words", "unbalanced", "one word of a megabyte", "a megabyte of words"]
"""Queries without a word that a passage has."""
SAFFRON = [page for page in PASSAGES if page.title == "Saffron"]


@dataclass
class BackEnd:
    """A retriever under test."""

    name: str
    card: dict[str, Any]
    retriever: Retriever
    folder: Path

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return self.retriever.search(queries, k)


pytestmark = pytest.mark.engine

Open = Callable[[str], BackEnd]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder with all `PARTS`, not to be changed."""
    folder = tmp_path_factory.mktemp("conformance") / "index"
    build_index(PASSAGES, folder, ALL)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The URL of a process that serves BM25."""
    command = [
        sys.executable,
        "-m",
        "searchgym",
        "serve",
        "retriever",
        str(folder),
        "--retriever",
        "bm25",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if "listening at" in line).split()[-1]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        HttpRetriever(url).wait(60)
        yield url
        process.send_signal(signal.SIGTERM)


class AsksAll:
    """Asks everything that is asked here."""

    async def run(self, question: Question, io: Any) -> None:
        for query in [*QUERIES, *TITLES, *ODD_QUERIES.values(), "saffron"]:
            await io.step(Search((query,)))
        await io.step(Answer("?"))


@pytest.fixture(scope="module")
def recorded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an evaluation with BM25."""
    out = tmp_path_factory.mktemp("conformance") / "run"
    options: Any = {"top_k": ABOVE, "max_turns": 200, "questions": QUESTIONS, "corpus": folder, "retriever": BM25}
    evaluate(load_task(ENV, **options), LoadedAgent("asks all", AsksAll()), out)
    return str(out)


_opened: dict[str, Retriever] = {}


def tool(query: str, k: int) -> list[Hit]:
    """Stands for a search on the web: answers one query, by BM25."""
    return _opened["bm25"].search([query], k)[0]


@pytest.fixture(scope="module")
def open_it(folder: Path, server: str, recorded: str) -> Iterator[Open]:
    def open_it(name: str) -> BackEnd:
        card = CARDS[name] | {"http": {"url": server}, "recorded": {"episodes": recorded}}.get(CARDS[name]["kind"], {})
        if name not in _opened:
            found = find_retriever(card)
            _opened[name] = Sources().open(found) if not found.needs_corpus else load_index(folder, card=found)
            at_step(_opened[name], 0, 10)  # of a training: there is no noise outside
        return BackEnd(name, card, _opened[name], folder)

    open_it("bm25")
    yield open_it
    _opened.clear()


@pytest.fixture(params=CARDS)
def back_end(request: pytest.FixtureRequest, open_it: Open) -> BackEnd:
    """Each back end in turn."""
    return open_it(request.param)


def seen(hit: Hit, name: str) -> tuple[str, ...]:
    """What a hit holds of its passage; ids get lost in the schema of ``/search``."""
    page = hit.passage
    return (page.title, page.text) if name == "search" else (page.id, page.title, page.text)


def assert_alike(found: Sequence[Sequence[Hit]], expected: Sequence[Sequence[Hit]], name: str) -> None:
    """Compares lists of all hits; for back ends with a tolerance the order may differ as far as that goes."""
    assert_same_hits(found, expected, TOLERANCE.get(name, 0.0), ABOVE, name)


class TestEveryBackEnd(RetrieverTests):
    """The contract of retrievers; the tests below add what is special to these ones and to this corpus."""

    queries = (*QUERIES, *TITLES)
    passages = PASSAGES
    most = ABOVE
    hostile = tuple(ODD_QUERIES.values())
    nothing = tuple(ODD_QUERIES[name] for name in NOTHING)
    question_id = QUESTIONS[0].id

    @pytest.fixture(autouse=True)
    def take(self, back_end: BackEnd) -> None:
        self.back_end, name = back_end, back_end.name
        self.tolerance, self.lexical = TOLERANCE.get(name, 0.0), name in LEXICAL
        self.many = MANY.get(name, 300 if name in TOLERANCE else 20_000)

    def make_retriever(self) -> Retriever:
        return self.back_end.retriever

    def identity(self, passage: Passage) -> tuple[str, ...]:
        return seen(Hit(passage, 0.0), self.back_end.name)


# -- hits ----------------------------------------------------------------------------------------------------------


def test_every_page_is_found_first_by_its_title(back_end: BackEnd) -> None:
    """The oracle is the corpus; of three that are alike the first comes first."""
    if back_end.name == "all noise":
        return
    found = back_end.search([*TITLES, "saffron"], 3)
    assert [hits[0].passage.title for hits in found[:-1]] == TITLES
    if back_end.name in TOLERANCE or back_end.name == "search":
        assert {hit.passage.text for hit in found[-1]} == {SAFFRON[0].text}
    else:
        assert [hit.passage for hit in found[-1]] == SAFFRON


def test_noise_finds_no_true_hit(open_it: Open) -> None:
    pairs = zip(open_it("all noise").search(TITLES, 3), open_it("bm25").search(TITLES, 3), strict=True)
    for noise, true in pairs:
        assert noise and not {hit.passage for hit in noise} & {hit.passage for hit in true}
        assert [hit.score for hit in noise] == [hit.score for hit in true]


def test_those_that_stand_on_bm25_find_what_it_finds(open_it: Open) -> None:
    expected = open_it("bm25").search([*QUERIES, *TITLES], ABOVE)
    for name in ("no noise", "cache", "recorded", "retrieve", "tool"):
        assert open_it(name).search([*QUERIES, *TITLES], ABOVE) == expected
    texts = [[seen(hit, "search") for hit in hits] for hits in expected]
    assert [[seen(h, "search") for h in hits] for hits in open_it("search").search([*QUERIES, *TITLES], ABOVE)] == texts


# -- calls ---------------------------------------------------------------------------------------------------------


def test_threads_find_the_same_by_the_ids_of_lucene(folder: Path) -> None:
    """As in an index of pyserini's: the documents are read, and pyjnius by itself mixes those of two threads up."""
    retriever = open_lucene(folder / "lucene", PassageStore(folder), LUCENE)
    queries = [*QUERIES, *TITLES] * 5
    first = [retriever.search([query], 9)[0] for query in queries]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: retriever.search(queries, 9), range(12))) == [first] * 12


def test_odd_queries_find_by_the_words_that_they_hold(back_end: BackEnd) -> None:
    if back_end.name == "all noise":
        return
    for name in ("control characters", "lone surrogate", "Lucene"):
        (hits,) = back_end.search([ODD_QUERIES[name]], 3)
        assert {"Okapi", "Nile crocodile"} <= {hit.passage.title for hit in hits}


@pytest.mark.parametrize("name", ["retrieve", "search"])
def test_a_server_says_what_is_too_much(open_it: Open, name: str) -> None:
    back_end, card = open_it(name), CARDS[name]
    greedy = HttpRetriever(back_end.retriever.url, card["schema"], most=1025)
    with pytest.raises(RetrieverError, match="at most 1024 in one request"):
        greedy.search(["zebra"] * 1025, 3)
    assert back_end.search(["zebra"] * 1025, 3) == 1025 * back_end.search(["zebra"], 3)  # in several requests
    with pytest.raises(RetrieverError, match="a number from 1 to 100"):
        open_it(name).search(["zebra"], 101)


def test_a_record_says_what_it_does_not_hold(open_it: Open) -> None:
    with pytest.raises(RetrieverError, match="has no search for 'never asked'"):
        open_it("recorded").search(["never asked"], 3)
    with pytest.raises(RetrieverError, match="holds the first 100 hits of each query, not 101"):
        open_it("recorded").search(["zebra"], 101)


# -- in environments -----------------------------------------------------------------------------------------------


def test_an_environment_searches_with_the_card_or_the_retriever(back_end: BackEnd) -> None:
    expected = [hit.passage.title for hit in back_end.search(["zebra"], 2)[0]]
    options: Any = {"questions": QUESTIONS, "corpus": back_end.folder, "top_k": 2}
    name = searchgym.register("Mine/Conformance-v0", retriever=back_end.retriever, **options)
    envs: list[Any] = [SearchEnv(ENV, retriever=back_end.card, **options), gymnasium.make(name)]
    for env in envs:
        env.reset(seed=0)
        at_step(env.unwrapped.task.retriever, 0, 10)  # of a training: there is no noise outside
        observation, _, terminated, truncated, info = env.step("<search>zebra</search>")
        assert [hit["title"] for hit in info["hits"]] == expected
        assert all(title in observation for title in expected)
        assert not terminated and not truncated


def test_what_they_say_of_themselves_is_plain_and_tells_them_apart(open_it: Open, folder: Path, tmp_path: Path) -> None:
    said = {name: identify(open_it(name).retriever) for name in CARDS}
    assert json.loads(json.dumps(said)) == said
    assert said["retrieve"] == said["search"] == said["bm25"]  # a client says what it asks
    texts = [json.dumps(said[name], sort_keys=True) for name in CARDS if name not in ("retrieve", "search")]
    texts += [json.dumps(identify(load_index(folder, card=card)), sort_keys=True) for card in VARIANTS]
    build_index(PASSAGES, tmp_path / "other", BM25 | {"k1": 1.2})
    texts.append(json.dumps(identify(load_index(tmp_path / "other")), sort_keys=True))
    assert [text for text, number in Counter(texts).items() if number > 1] == []
    for name in CARDS:
        if isinstance(open_it(name).retriever, CorpusRetriever):
            assert said[name]["passages"] == 40
            assert said[name]["corpus"] == json.loads((folder / MANIFEST).read_text())["corpus_sha256"]


# -- damaged index folders -----------------------------------------------------------------------------------------


def trust(folder: Path) -> None:
    """Has the manifest describe the files as they are, so that only the back end itself can refuse them."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    files = {name: asdict(file) for name, file in describe_files(folder).items() if name != MANIFEST}
    if "passages.jsonl" in files:
        manifest["corpus_sha256"] = files["passages.jsonl"]["sha256"]
    path.write_text(json.dumps(manifest | {"files": files}))


def foreign(path: Path) -> bytes:
    return np.random.default_rng(0).bytes(path.stat().st_size)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "foreign": lambda path: path.write_bytes(foreign(path)),
}
STORE = ("passages.jsonl", "offsets.npy", "ids.npy")


def files_of(folder: Path, part: str) -> list[Path]:
    return [folder / name for name in STORE] if part == "store" else sorted((folder / part).iterdir())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", ["store", *PARTS])
def test_a_damaged_file_is_refused_by_name(folder: Path, tmp_path: Path, part: str, damage: str) -> None:
    copied = shutil.copytree(folder, tmp_path / "copy")
    for path in files_of(copied, part):
        whole, name = path.read_bytes(), path.relative_to(copied).as_posix()
        DAMAGES[damage](path)
        with pytest.raises(IndexMismatchError, match=rf"(?s){name}.*{REMEDY}"):
            load_index(copied, card=PARTS.get(part, BM25))
        path.write_bytes(whole)
    load_index(copied, card=PARTS.get(part, BM25))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", ["store", *PARTS])
def test_a_damage_that_the_manifest_hides_is_refused(folder: Path, tmp_path: Path, part: str, damage: str) -> None:
    """By the back end itself; passages and ids of another corpus look like any, but for what they are read as."""
    copied = shutil.copytree(folder, tmp_path / "copy")
    for path in files_of(copied, part):
        if (path.name, damage) in UNSEEN:
            continue
        whole = path.read_bytes()
        DAMAGES[damage](path)
        trust(copied)
        with pytest.raises(IndexMismatchError, match=REMEDY):
            load_index(copied, card=PARTS.get(part, BM25))
        path.write_bytes(whole)
    trust(copied)
    load_index(copied, card=PARTS.get(part, BM25))


UNSEEN = {("ids.npy", "missing"), ("passages.jsonl", "foreign")}
"""Ids are then positions, as in many corpora; lines are read when they are hits."""


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def as_array(path: Path, payload: Payload) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([payload], dtype=object), allow_pickle=True)


def as_pickle(path: Path, payload: Payload) -> None:
    path.write_bytes(pickle.dumps(payload))


@pytest.mark.parametrize("hide", [as_array, as_pickle])
@pytest.mark.parametrize("part", ["store", *PARTS])
def test_no_pickle_is_ever_read(folder: Path, tmp_path: Path, part: str, hide: Callable[[Path, Payload], None]) -> None:
    marker, proof = tmp_path / "executed", tmp_path / "proof"
    pickle.loads(pickle.dumps(Payload(proof)))
    assert proof.exists()
    copied = shutil.copytree(folder, tmp_path / "copy")
    for path in files_of(copied, part):
        whole = path.read_bytes()
        hide(path, Payload(marker))
        trust(copied)
        with pytest.raises(IndexMismatchError, match=REMEDY):
            load_index(copied, card=PARTS.get(part, BM25))
        assert not marker.exists()
        path.write_bytes(whole)


DENSE = [part for part in PARTS if part.startswith("dense")]
CLS = asdict(find_retriever("minilm-flat"))["encoder"] | {"pooling": "cls"}


@pytest.mark.parametrize("part", DENSE)
def test_vectors_of_another_encoder_are_refused(folder: Path, tmp_path: Path, part: str) -> None:
    card = PARTS[part] | {"encoder": CLS}
    with pytest.raises(UsageError, match="has no part for the card"):
        load_index(folder, card=card)
    copied = shutil.copytree(folder, tmp_path / "copy")
    manifest = json.loads((copied / MANIFEST).read_text())
    manifest["parts"][part]["card"]["encoder"]["pooling"] = "cls"  # as if the weights had changed behind the name
    (copied / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(IndexMismatchError, match=r"encoder card 'minilm-\w+' .*gives another vector for passage '0'"):
        load_index(copied, card=card)


@pytest.mark.parametrize("part", PARTS)
def test_a_corpus_that_changed_after_indexing_is_refused(folder: Path, tmp_path: Path, part: str) -> None:
    with pytest.raises(IndexMismatchError, match=rf"was built from corpus \w+, expected 00.*{REMEDY}"):
        load_index(folder, expect_sha256="00", card=PARTS[part])
    copied = shutil.copytree(folder, tmp_path / "copy")
    text = (copied / "passages.jsonl").read_text()
    for changed in (text.replace("Amsterdam", "Rotterdam"), text.replace("Amsterdam", "Groningen, not")):
        (copied / "passages.jsonl").write_text(changed)
        with pytest.raises(IndexMismatchError, match=rf"passages\.jsonl .*{REMEDY}"):
            load_index(copied, card=PARTS[part])


@pytest.mark.parametrize("part", ["lucene", *DENSE])
def test_a_part_of_another_corpus_is_refused(folder: Path, tmp_path: Path, part: str) -> None:
    """The manifest hides it: what tells are the ids of the ends to Lucene, some of the texts to vectors."""
    copied = shutil.copytree(folder, tmp_path / "copy")
    text = (copied / "passages.jsonl").read_text()
    (copied / "passages.jsonl").write_text(text.replace('"0"', '"O"', 1).replace("Amsterdam", "Ilmenites"))
    trust(copied)
    with pytest.raises(IndexMismatchError, match=REMEDY):
        load_index(copied, card=PARTS[part])


# -- interrupted builds --------------------------------------------------------------------------------------------

SHARD = 10
STAGES = {"bm25": "merging postings", "lucene": "indexing by Lucene", "dense-2": "adding vectors"}
STAGES["dense-3"] = STAGES["dense-2"]
BYTES = ("bm25", "dense", "dense-2")
"""Parts that are the same to the byte; Lucene's files hold random names, and a graph depends on threads."""


class Remembers:
    """An encoder that encodes everything once."""

    known: dict[Any, Any] = {}  # noqa: RUF012 (of all)

    def __init__(self, encoder: encoders.Encoder) -> None:
        self.card, self._encoder = encoder.card, encoder

    def encode_queries(self, texts: Sequence[str]) -> Any:
        return self._once(texts, self._encoder.encode_queries)

    def encode_passages(self, passages: Sequence[Passage]) -> Any:
        return self._once(passages, self._encoder.encode_passages)

    def _once(self, items: Sequence[Any], encode: Callable[[Any], Any]) -> Any:
        if unknown := [item for item in items if item not in self.known]:
            self.known.update(zip(unknown, encode(unknown), strict=True))
        return np.stack([self.known[item] for item in items])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the index folder of a part, built without a fault."""
    folder = tmp_path_factory.mktemp("whole")

    def whole(part: str) -> Path:
        if not (folder / part).exists():
            build_index(PASSAGES, folder / part, PARTS[part], shard=SHARD)
        return folder / part

    return whole


@pytest.fixture
def remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    load = encoders.load_encoder
    monkeypatch.setattr(encoders, "load_encoder", lambda card: Remembers(load(card)))


Whole = Callable[[str], Path]


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_index(folder: Path, expected: Path, part: str) -> None:
    if part in BYTES:
        assert all_bytes(folder) == all_bytes(expected)
    else:
        assert_finds_the_same(folder, expected, part)
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}.")]


def assert_finds_the_same(folder: Path, expected: Path, part: str) -> None:
    found, whole = (load_index(at, card=PARTS[part]).search(QUERIES, ABOVE) for at in (folder, expected))
    assert_alike(found, whole, "flat" if part.startswith("dense") else part)


def stopping(after: int) -> Iterator[Passage]:
    yield from PASSAGES[:after]
    raise KeyboardInterrupt


@pytest.mark.parametrize("part", PARTS)
def test_a_build_interrupted_again_and_again_equals_one_that_was_not(
    folder: Path, whole: Whole, tmp_path: Path, part: str
) -> None:
    def stop(stage: str, done: int, number: int) -> None:
        if stage == STAGES.get(part):
            raise KeyboardInterrupt

    for source in (stopping(13), stopping(25), stopping(38), PASSAGES if part in STAGES else stopping(39)):
        with pytest.raises(KeyboardInterrupt):
            build_index(source, tmp_path / "index", PARTS[part], shard=SHARD, progress=stop)
        with pytest.raises(DataMissingError):
            load_index(tmp_path / "index")
    build_index(PASSAGES, tmp_path / "index", PARTS[part], shard=SHARD)
    assert_same_index(tmp_path / "index", whole(part), part)
    assert_finds_the_same(tmp_path / "index", folder, part)  # of one shard


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("remembers")
def test_a_disk_that_fills_up_anywhere_costs_no_more_than_time(
    whole: Whole, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that something is to be on disk, in turn, it is not."""
    real, left = os.fsync, [0]

    def fsync(file: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    for number in itertools.count(1):
        left[0], out = number, tmp_path / str(number)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                build_index(PASSAGES, out, PARTS[part], shard=SHARD)
                break
            except (OSError, SearchGymError) as error:
                assert "No space left" in str(error)
        with pytest.raises(DataMissingError):
            load_index(out)
        build_index(PASSAGES, out, PARTS[part], shard=SHARD)
        assert_same_index(out, whole(part), part)
    assert number > 4 * 3  # each of four shards: lines, ends, state


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Has the system refuse to let a file grow beyond a size, whoever writes: Python, FAISS or Java."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("remembers")
def test_a_write_that_the_system_refuses_costs_no_more_than_time(whole: Whole, tmp_path: Path, part: str) -> None:
    sizes = {path.stat().st_size for path in whole(part).rglob("*") if path.is_file()}
    for size in sorted(sizes):
        out = tmp_path / str(size)
        with files_of_at_most(size - 1), pytest.raises((OSError, SearchGymError)):
            build_index(PASSAGES, out, PARTS[part], shard=SHARD)
        with pytest.raises(DataMissingError):
            load_index(out)
        build_index(PASSAGES, out, PARTS[part], shard=SHARD)
        assert_same_index(out, whole(part), part)


@pytest.mark.usefixtures("remembers")
def test_what_lucene_cannot_write_costs_no_vectors(folder: Path, tmp_path: Path) -> None:
    card = {"kind": "hybrid", "of": [LUCENE, PARTS["dense"]]}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(stage: str, done: int, number: int) -> None:
        if stage == STAGES["lucene"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))

    with files_of_at_most(1 << 40), pytest.raises(OSError, match=r"Lucene cannot index: .*File too large"):
        build_index(PASSAGES, tmp_path / "index", card, shard=SHARD, progress=full)
    assert len(json.loads((tmp_path / ".index.building" / ".build.json").read_text())["shards"]) == 4
    assert (tmp_path / ".index.building/.shards/dense/vectors.faiss").stat().st_size > 4 * 40 * 384
    build_index(PASSAGES, tmp_path / "index", card, shard=SHARD)
    found, expected = (load_index(at, card=LUCENE).search(QUERIES, ABOVE) for at in (tmp_path / "index", folder))
    assert found == expected
