"""Dense retrieval: the order of numpy's inner products, FAISS's own bytes; what is another's is refused."""

from __future__ import annotations

import copy
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from searchgym.corpora.passages import read_passages
from searchgym.errors import IndexMismatchError, ModelError, UsageError
from searchgym.options.cards import EncoderCard
from searchgym.records import Passage
from searchgym.retrieval import encoders
from searchgym.retrieval.dense import backend as dense
from searchgym.retrieval.dense import vectors
from searchgym.retrieval.dense.backend import DenseRetriever
from searchgym.retrieval.index.build import build_index, building_folder
from searchgym.retrieval.index.index import describe_files, load_index
from searchgym.retrieval.kinds.dense import DenseCard
from searchgym.retrieval.retriever import CorpusRetriever

DIMENSION = 24
ENCODER = EncoderCard(name="made", model="made", dimension=DIMENSION, passage="{text}")
FLAT = DenseCard(encoder=ENCODER)
IVF = replace(FLAT, index="ivf-sq8", nprobe=8)
HNSW = replace(FLAT, index="hnsw", links=16)


class MadeEncoder:
    """Looks vectors up: the vector of text "12" is row 12; counts the passages that it encodes."""

    def __init__(self, table: np.ndarray, card: EncoderCard = ENCODER) -> None:
        self.card, self.table, self.passages = card, table.astype(np.float32), 0

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.table[[int(text) for text in texts]]

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray:
        self.passages += len(passages)
        return self.encode_queries([passage.text for passage in passages])


def made_vectors(number: int, dimension: int = DIMENSION, seed: int = 0) -> np.ndarray:
    """Vectors of length 1 around a hundred directions, as real texts have subjects."""
    rng = np.random.default_rng(seed)
    middles = rng.standard_normal((100, dimension))
    table = middles[rng.integers(0, 100, number)] + 0.7 * rng.standard_normal((number, dimension))
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


def numbered(number: int) -> list[Passage]:
    return [Passage(str(i), "", str(i)) for i in range(number)]


Use = Callable[[np.ndarray], MadeEncoder]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Puts an encoder of some vectors in the place of every one."""

    def place(table: np.ndarray) -> MadeEncoder:
        encoder = MadeEncoder(table)
        monkeypatch.setattr(encoders, "load_encoder", lambda card: encoder)
        return encoder

    return place


def best(table: np.ndarray, query: int, k: int) -> list[int]:
    """Ranks by inner product, ties by position."""
    scores = (table.astype(np.float64) @ table[query].astype(np.float64)).round(6)
    return np.lexsort((np.arange(len(table)), -scores))[:k].tolist()


def found(retriever: CorpusRetriever, queries: Sequence[int], k: int) -> list[list[int]]:
    return [[int(hit.passage.id) for hit in hits] for hits in retriever.search([str(q) for q in queries], k)]


def recall(retriever: CorpusRetriever, table: np.ndarray, k: int = 10) -> float:
    queries = range(0, len(table), 97)
    pairs = zip(found(retriever, queries, k), (best(table, q, k) for q in queries), strict=True)
    return float(np.mean([len(set(a) & set(b)) / k for a, b in pairs]))


# -- search --------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_flat_ranks_as_numpy_does(tmp_path: Path, use: Use) -> None:
    table = made_vectors(500)
    use(table)
    build_index(numbered(500), tmp_path / "i", FLAT, shard=120)
    retriever = load_index(tmp_path / "i")
    assert isinstance(retriever, DenseRetriever) and isinstance(retriever, CorpusRetriever)
    assert found(retriever, range(40), 7) == [best(table, q, 7) for q in range(40)]
    (hits,) = retriever.search(["3"], 2)
    assert hits[0].passage == Passage("3", "", "3")
    assert [hit.score for hit in hits] == pytest.approx(sorted(table @ table[3])[:-3:-1], abs=1e-6)
    assert found(retriever, [5], 10_000) == [best(table, 5, 500)]
    assert retriever.search([], 3) == []
    assert len(retriever) == 500 and list(retriever.passages()) == numbered(500)
    assert copy.deepcopy(retriever) is retriever and retriever.in_process
    assert retriever.passage(7) == Passage("7", "", "7")
    assert json.loads(json.dumps(retriever.identity()))["encoder"]["model"] == "made"


def test_more_queries_than_a_block_give_the_same(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_vectors(90)
    use(table)
    build_index(numbered(90), tmp_path / "i", FLAT)
    retriever = load_index(tmp_path / "i")
    expected = found(retriever, range(90), 5)
    monkeypatch.setattr(dense, "_QUERIES_AT_ONCE", 7)
    assert found(retriever, range(90), 5) == expected


@pytest.mark.parametrize("card", [FLAT, IVF, HNSW], ids=lambda card: card.index)
def test_ties_are_in_passage_order(tmp_path: Path, use: Use, card: DenseCard) -> None:
    table = np.repeat(made_vectors(8), 5, axis=0)
    use(table)
    build_index(numbered(40), tmp_path / "i", card)
    retriever = load_index(tmp_path / "i")
    (positions,) = found(retriever, [20], 5)
    assert positions == [20, 21, 22, 23, 24]
    if card.index == "flat":
        assert found(retriever, [20], 3) == [[20, 21, 22]]
        assert found(retriever, [20] * 30, 3) == [[20, 21, 22]] * 30  # FAISS multiplies matrices from 20 queries on


def test_a_query_that_is_not_a_number_finds_nothing(tmp_path: Path, use: Use) -> None:
    table = np.concatenate([made_vectors(60), np.full((1, DIMENSION), np.nan)])
    use(table)
    for card in (FLAT, IVF, HNSW):
        build_index(numbered(60), tmp_path / card.index, card)
        hits = load_index(tmp_path / card.index).search(["60", "3"], 4)
        assert [hit for hit in hits[0] if not np.isnan(hit.score)] == []
        assert hits[1][0].passage.id == "3"


@pytest.mark.parametrize(("queries", "k"), [("text", 1), (["1"], 0), (["1"], -1)])
def test_wrong_arguments_are_refused(tmp_path: Path, use: Use, queries: Any, k: int) -> None:
    use(made_vectors(4))
    build_index(numbered(4), tmp_path / "i", FLAT)
    with pytest.raises(UsageError, match=r"must be a list of strings|k must be at least 1"):
        load_index(tmp_path / "i").search(queries, k)


def test_threads_search_at_the_same_time(tmp_path: Path, use: Use) -> None:
    table = made_vectors(400)
    use(table)
    for card in (FLAT, IVF, HNSW):
        build_index(numbered(400), tmp_path / card.index, card)
        retriever = load_index(tmp_path / card.index)
        expected, got = found(retriever, range(50), 9), []

        def run(retriever: CorpusRetriever = retriever, got: list[Any] = got) -> None:
            got.extend(found(retriever, range(50), 9) for _ in range(5))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [expected] * 20


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_flat_index_is_the_file_that_faiss_writes(tmp_path: Path, use: Use) -> None:
    table = made_vectors(300)
    use(table)
    build_index(numbered(300), tmp_path / "i", FLAT, shard=70)
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(table)
    faiss.write_index(index, str(tmp_path / "own"))
    assert (tmp_path / "i/dense/index.faiss").read_bytes() == (tmp_path / "own").read_bytes()
    assert sorted(file.name for file in (tmp_path / "i/dense").iterdir()) == ["index.faiss", "probe.npy"]


def test_ivf_finds_nearly_what_flat_does(tmp_path: Path, use: Use) -> None:
    table = made_vectors(8000)
    use(table)
    build_index(numbered(8000), tmp_path / "i", replace(IVF, nprobe=64))
    index = faiss.read_index(str(tmp_path / "i/dense/index.faiss"))
    assert index.nlist == 8000 // 39 and index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert index.code_size == DIMENSION and index.sq.qtype == faiss.ScalarQuantizer.QT_8bit
    assert recall(load_index(tmp_path / "i"), table) > 0.95
    fewer = recall(load_index(tmp_path / "i", card=replace(IVF, nprobe=1)), table)
    assert fewer < 0.9  # what is searched with is the card's
    exhaustive = load_index(tmp_path / "i", card=replace(IVF, nprobe=10_000))
    assert recall(exhaustive, table) > 0.97  # one byte a number costs this much


def test_hnsw_finds_nearly_what_flat_does(tmp_path: Path, use: Use) -> None:
    table = made_vectors(2000)
    use(table)
    build_index(numbered(2000), tmp_path / "i", HNSW)
    assert recall(load_index(tmp_path / "i"), table) > 0.95
    narrow = load_index(tmp_path / "i", card=replace(HNSW, ef_search=1))
    assert recall(narrow, table) < recall(load_index(tmp_path / "i"), table)
    assert [len(hits) for hits in narrow.search(["1", "2"], 300)] == [300, 300]


@pytest.mark.parametrize("card", [FLAT, IVF], ids=lambda card: card.index)
def test_the_same_vectors_give_the_same_bytes(tmp_path: Path, use: Use, card: DenseCard) -> None:
    use(made_vectors(3000))
    build_index(numbered(3000), tmp_path / "a", card, shard=700)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    build_index(numbered(3000), tmp_path / "b", card, shard=3000)
    faiss.omp_set_num_threads(threads)
    assert describe_files(tmp_path / "a/dense") == describe_files(tmp_path / "b/dense")


@pytest.mark.parametrize("number", [1, 2, 5, 38, 40, 100])
@pytest.mark.parametrize("card", [FLAT, IVF, HNSW], ids=lambda card: card.index)
def test_tiny_corpora_work_in_silence(
    tmp_path: Path, use: Use, card: DenseCard, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    table = made_vectors(number)
    use(table)
    build_index(numbered(number), tmp_path / "i", card)
    assert found(load_index(tmp_path / "i"), range(number), 1) == [[q] for q in range(number)]
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("vectors_there", "lists", "training", "expected"),
    [
        (1, None, None, (1, 1)),
        (77, None, None, (1, 64)),
        (78, None, None, (2, 78)),
        (10_000, None, None, (256, 10_000)),  # 39 for each
        (1_000_000, None, None, (4000, 256_000)),  # 4 * 1000, 64 for each
        (21_015_324, None, None, (18_336, 1_173_504)),  # 4 * 4584
        (1000, 50, None, (50, 1000)),
        (100_000, 50, 20, (50, 50)),  # a list needs a vector
        (10, 50, None, (10, 10)),
    ],
)
def test_lists_follow_the_guideline_of_faiss(
    vectors_there: int, lists: int | None, training: int | None, expected: tuple[int, int]
) -> None:
    assert vectors.lists_of(replace(IVF, lists=lists, training=training), vectors_there) == expected


def test_needs_are_those_of_the_files(tmp_path: Path, use: Use) -> None:
    use(made_vectors(4000))
    for card in (FLAT, IVF, HNSW):
        build_index(numbered(4000), tmp_path / card.index, card)
        size = (tmp_path / card.index / "dense/index.faiss").stat().st_size
        beside = 0 if card.index == "flat" else 4 * 4000 * DIMENSION
        assert dense.needs(card, 4000, 0).disk == pytest.approx(size + beside, rel=0.02)


@pytest.mark.slow_cases
@pytest.mark.parametrize("card", [FLAT, IVF], ids=lambda card: card.index)
def test_an_opened_index_is_not_in_memory(tmp_path: Path, card: DenseCard) -> None:
    """In a process of its own: its private memory grows by less than a tenth of the file."""
    table = made_vectors(6000, 512)
    source, target = tmp_path / "flat", tmp_path / "index"
    vectors.write_vectors(source, 0, table)
    vectors.finish_vectors(source, *table.shape)
    vectors.write_index(card, source, target, lambda *_: None)
    code = f"""
import numpy as np
from pathlib import Path
from searchgym.retrieval.dense import vectors
def private():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
vectors.open_index(Path({str(source)!r})).search(np.ones((1, 512), np.float32), 3)
before = private()
index = vectors.open_index(Path({str(target)!r}))
index.search(np.ones((1, 512), np.float32), 3)
print(private() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert grown < target.stat().st_size / (4 if card.index == "ivf-sq8" else 10)  # 153 lists of 2 KB are read


# -- interrupted builds --------------------------------------------------------------------------------------------


def broken_off(passages: Sequence[Passage], after: int) -> Iterator[Passage]:
    yield from passages[:after]
    raise KeyboardInterrupt


def test_an_interrupted_build_encodes_nothing_twice(tmp_path: Path, use: Use) -> None:
    encoder = use(made_vectors(100))
    build_index(numbered(100), tmp_path / "whole", FLAT, shard=30)
    encoder.passages = 0
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_off(numbered(100), 70), tmp_path / "i", FLAT, shard=30)
    assert encoder.passages == 60
    build_index(numbered(100), tmp_path / "i", FLAT, shard=30)
    assert encoder.passages == 100
    assert describe_files(tmp_path / "i") == describe_files(tmp_path / "whole") | {
        "manifest.json": describe_files(tmp_path / "i")["manifest.json"]
    }


def test_another_corpus_is_encoded_from_where_it_differs(tmp_path: Path, use: Use) -> None:
    encoder = use(made_vectors(100))
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_off(numbered(100), 95), tmp_path / "i", FLAT, shard=30)
    other = [*numbered(30), Passage("x", "", "99"), *numbered(60)[31:50]]
    encoder.passages = 0
    build_index(other, tmp_path / "i", FLAT, shard=30)
    assert encoder.passages == 20
    rows = vectors.map_vectors(tmp_path / "i/dense/index.faiss")
    np.testing.assert_array_equal(rows, encoder.encode_passages(other))


def test_a_corpus_that_became_shorter_leaves_nothing_behind(tmp_path: Path, use: Use) -> None:
    use(made_vectors(100))
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_off(numbered(100), 95), tmp_path / "i", FLAT, shard=30)
    build_index(numbered(60), tmp_path / "i", FLAT, shard=30)
    build_index(numbered(60), tmp_path / "whole", FLAT)
    assert describe_files(tmp_path / "i/dense") == describe_files(tmp_path / "whole/dense")


def test_what_stood_behind_is_gone(tmp_path: Path) -> None:
    table = made_vectors(10)
    vectors.write_vectors(tmp_path / "v", 0, table)
    vectors.write_vectors(tmp_path / "v", 3, table[:2])
    assert (tmp_path / "v").stat().st_size == vectors.START + 4 * DIMENSION * 5
    vectors.finish_vectors(tmp_path / "v", 5, DIMENSION)
    np.testing.assert_array_equal(vectors.map_vectors(tmp_path / "v"), table[[0, 1, 2, 0, 1]])


def cut_to(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def flip_second(path: Path) -> None:
    """Changes a number of the second shard of 30 vectors."""
    with path.open("r+b") as file:
        file.seek(vectors.START + 4 * DIMENSION * 40)
        file.write(b"wrong")


@pytest.mark.parametrize(
    ("damage", "again"),
    [(Path.unlink, 100), (cut_to(0), 100), (cut_to(vectors.START + 4 * DIMENSION * 59), 70), (flip_second, 70)],
)
def test_damaged_vectors_of_an_interrupted_build_are_encoded_again(
    tmp_path: Path, use: Use, damage: Callable[[Path], None], again: int
) -> None:
    encoder = use(made_vectors(100))
    build_index(numbered(100), tmp_path / "whole", FLAT, shard=30)
    with pytest.raises(KeyboardInterrupt):
        build_index(broken_off(numbered(100), 70), tmp_path / "i", FLAT, shard=30)
    (file,) = building_folder(tmp_path / "i").rglob("vectors.faiss")
    damage(file)
    encoder.passages = 0
    build_index(numbered(100), tmp_path / "i", FLAT, shard=30)
    assert encoder.passages == again
    assert describe_files(tmp_path / "i/dense") == describe_files(tmp_path / "whole/dense")


def test_a_vector_that_is_not_finite_is_refused(tmp_path: Path, use: Use) -> None:
    table = made_vectors(5)
    table[3, 0] = np.nan
    use(table)
    with pytest.raises(ModelError, match="encoder 'made' gives a vector that is not finite for passage '3'"):
        build_index(numbered(5), tmp_path / "i", FLAT)
    assert list(tmp_path.iterdir()) == []


# -- what is refused -----------------------------------------------------------------------------------------------


def make_true(folder: Path) -> None:
    """Makes the manifest describe the files as they are, as one does who alters both."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        file = describe_files(folder)[name]
        manifest["files"][name] = {"bytes": file.bytes, "fingerprint": file.fingerprint, "sha256": file.sha256}
    path.write_text(json.dumps(manifest))


def test_another_encoder_is_refused(tmp_path: Path, use: Use) -> None:
    table = made_vectors(50)
    use(table)
    build_index(numbered(50), tmp_path / "i", FLAT)
    use((table + 0.001).astype(np.float16))  # another device in half precision
    load_index(tmp_path / "i")
    other = table.copy()
    other[33] += 0.05 * np.sign(np.arange(DIMENSION) % 2 - 0.5)
    use(other)
    with pytest.raises(
        IndexMismatchError,
        match=r"encoder card 'made' \(made\) gives another vector for passage '33' .*cosine 0.9[0-8]",
    ):
        load_index(tmp_path / "i")


@pytest.mark.parametrize("card", [FLAT, IVF, HNSW], ids=lambda card: card.index)
def test_a_file_that_is_another_is_refused(tmp_path: Path, use: Use, card: DenseCard) -> None:
    use(made_vectors(200))
    build_index(numbered(200), tmp_path / "i", card)
    file = tmp_path / "i/dense/index.faiss"
    good = file.read_bytes()
    other = faiss.IndexFlatIP(DIMENSION)
    other.add(made_vectors(199))
    l2 = faiss.IndexFlatL2(DIMENSION)
    l2.add(made_vectors(200))
    longer = faiss.IndexFlatIP(DIMENSION + 1)
    longer.add(made_vectors(200, DIMENSION + 1))
    bad = [
        b"",
        b"IxFI",
        b"no index at all" * 10,
        *(faiss.serialize_index(one).tobytes() for one in (other, l2, longer)),
    ]
    bad += [good[:-1], good[: len(good) // 2], good[:60]]
    bad += [good[:8] + struct.pack("<q", number) + good[16:] for number in (-1, 0, 199, 2**60)]
    bad += [good[:4] + struct.pack("<i", number) + good[8:] for number in (-1, 0, 23, 2**31 - 1)]
    bad += [good[:33] + struct.pack("<i", 1) + good[37:]]
    for content in bad:
        file.write_bytes(content)
        make_true(tmp_path / "i")
        with pytest.raises(IndexMismatchError, match=r"dense|index\.faiss"):
            load_index(tmp_path / "i", card=card)
    file.write_bytes(good)
    make_true(tmp_path / "i")
    load_index(tmp_path / "i", card=card)


@pytest.mark.parametrize("card", [FLAT, IVF, HNSW], ids=lambda card: card.index)
def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path, card: DenseCard) -> None:
    source, whole, cut = tmp_path / "source", tmp_path / "whole", tmp_path / "cut"
    table = made_vectors(200)
    vectors.write_vectors(source, 0, table)
    vectors.finish_vectors(source, *table.shape)
    vectors.write_index(card, source, whole, lambda *_: None)
    content = whole.read_bytes()
    for size in (*range(0, 400, 7), *range(400, len(content), 401), len(content) - 1):
        cut.write_bytes(content[:size])
        with pytest.raises(IndexMismatchError, match="cut"):
            vectors.open_index(cut)


def test_probes_that_are_not_of_this_index_are_refused(tmp_path: Path, use: Use) -> None:
    use(made_vectors(20))
    build_index(numbered(20), tmp_path / "i", FLAT)
    for content in (np.zeros((3, DIMENSION), np.float32), np.zeros((4, 3), np.float32), np.array([{}])):
        np.save(tmp_path / "i/dense/probe.npy", content, allow_pickle=True)
        make_true(tmp_path / "i")
        with pytest.raises(IndexMismatchError, match=r"probe\.npy|allow_pickle"):
            load_index(tmp_path / "i", card=FLAT)


def test_facts_of_another_index_are_refused(tmp_path: Path, use: Use) -> None:
    use(made_vectors(20))
    build_index(numbered(20), tmp_path / "i", FLAT)
    path = tmp_path / "i/manifest.json"
    good = json.loads(path.read_text())
    for change in ({"passages": 19}, {"dimension": 3}, {"probes": [0]}, {"probes": None}, {"dimension": "x"}):
        facts = good["parts"]["dense"]["facts"] | change
        path.write_text(json.dumps(good | {"parts": {"dense": good["parts"]["dense"] | {"facts": facts}}}))
        with pytest.raises(IndexMismatchError, match="dense"):
            load_index(tmp_path / "i", card=FLAT)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"device": "cuda"}, r"has no GPU support: .*pip install -e .*\[gpu\]"),
        ({"device": "cuda:1"}, r"has no GPU support"),
        ({"device": "tpu"}, "must be cpu, cuda or cuda:N, got 'tpu'"),
        ({"device": "cuda:"}, "must be cpu, cuda or cuda:N"),
        ({"device": "cuda:-1"}, "must be cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, use: Use, changes: dict[str, Any], problem: str) -> None:
    if hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this FAISS has GPU support")
    use(made_vectors(3))
    build_index(numbered(3), tmp_path / "i", FLAT)
    with pytest.raises(UsageError, match=problem):
        load_index(tmp_path / "i", card=replace(FLAT, **changes))


def test_hnsw_is_for_the_cpu(tmp_path: Path, use: Use) -> None:
    use(made_vectors(3))
    build_index(numbered(3), tmp_path / "i", HNSW)
    with pytest.raises(UsageError, match="hnsw on the CPU only"):
        load_index(tmp_path / "i", card=replace(HNSW, device="cuda"))


# -- the real encoder ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_passages_are_found_by_what_they_mean(tmp_path: Path, real_data: Path) -> None:
    passages = [p for p, _ in zip(read_passages(real_data / "hotpotqa/corpus.json"), range(8), strict=False)]
    card = {"kind": "dense", "encoder": "minilm-package"}
    build_index(passages, tmp_path / "i", card)
    retriever = load_index(tmp_path / "i")
    assert [hits[0].passage.title for hits in retriever.search([p.text for p in passages], 1)] == [
        p.title for p in passages
    ]
    encoder = encoders.load_encoder(load_index(tmp_path / "i")._card.encoder)  # type: ignore[attr-defined]
    expected = encoder.encode_passages(passages) @ encoder.encode_queries(["the film of a director"])[0]
    (hits,) = retriever.search(["the film of a director"], 8)
    assert [hit.score for hit in hits] == pytest.approx(np.sort(expected)[::-1].tolist(), abs=1e-6)
    swapped = {"kind": "dense", "encoder": {**_fields(card), "query": "query: {text}"}}
    assert load_index(tmp_path / "i", card=swapped).search(["the film"], 3) != retriever.search(["the film"], 3)


def _fields(card: dict[str, Any]) -> dict[str, Any]:
    from searchgym.options import plain
    from searchgym.retrieval.cards import find_retriever

    fields: dict[str, Any] = plain(find_retriever(card))["encoder"]
    return fields
