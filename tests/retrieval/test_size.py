"""How large a corpus is told to be, beside counting it; and what its index is told to take."""

import dataclasses
import gzip
import itertools
import json
import random

import pytest

from searchgym.corpora.folders import bundled_file
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.records import Passage
from searchgym.retrieval.cards import find_retriever
from searchgym.retrieval.index import size
from searchgym.retrieval.index.size import Size, estimate, needs

CORPUS = bundled_file("demo/corpus.jsonl")
WORDS = [word for passage in read_passages(CORPUS) for word in passage.text.split()]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A corpus of about three times the sample: passages of 20 to 200 words."""
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("large") / "corpus.jsonl"
    write_corpus(
        file, (Passage(str(i), "T", " ".join(draw.choices(WORDS, k=draw.randint(20, 200)))) for i in range(20_000))
    )
    assert file.stat().st_size > 2.9 * size.SAMPLE
    return file


@pytest.mark.slow
def test_a_plain_file_is_told_within_a_twentieth(large):
    found = estimate(large)
    assert found.passages == pytest.approx(20_000, rel=0.05)
    assert found.bytes == large.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 9])
def test_a_packed_file_is_told_within_a_twentieth(large, tmp_path, level):
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(large.read_bytes(), level))
    found = estimate(packed)
    assert found.passages == pytest.approx(20_000, rel=0.05)
    assert found.bytes == pytest.approx(large.stat().st_size, rel=0.05)


@pytest.mark.parametrize("name", ["tiny.jsonl", "tiny.jsonl.gz"])
def test_a_file_within_the_sample_is_counted(tmp_path, name):
    data = CORPUS.read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert estimate(tmp_path / name) == Size(passages=25, bytes=len(data))


def test_one_line_without_an_end_is_one_passage(tmp_path):
    line = CORPUS.read_bytes().splitlines()[0]
    (tmp_path / "one.jsonl").write_bytes(line)
    assert estimate(tmp_path / "one.jsonl") == Size(passages=1, bytes=len(line))


def test_of_a_beir_folder_the_corpus_is_told(tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes(CORPUS.read_bytes())
    (tmp_path / "queries.jsonl").write_bytes(CORPUS.read_bytes() * 3)
    assert estimate(tmp_path) == estimate(CORPUS)


def test_of_what_has_no_lines_nothing_is_told(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Herring\n")
    (tmp_path / "all.json").write_text(json.dumps([dataclasses.asdict(one) for one in read_passages(CORPUS)], indent=1))
    for source in (tmp_path / "notes", tmp_path / "all.json", "hf:OWNER/NAME:CONFIG/SPLIT"):
        assert estimate(source) is None


@pytest.mark.parametrize(
    "card",
    ["bm25", "lucene", "e5-flat", "e5-ivf", "e5-hnsw", "hybrid-e5", "bm25-minilm-rerank", "bm25-noise"],
)
def test_a_larger_corpus_needs_more(card):
    found = [needs(find_retriever(card), Size(passages=n, bytes=600 * n)) for n in (1, 1000, 10**6, 21_015_324)]
    for small, large in itertools.pairwise(found):
        assert small.memory < large.memory
        assert small.disk < large.disk
    assert found[0].memory > 300_000_000  # the program itself


def test_what_wikipedia_needs_is_of_the_order_that_is_published():
    """Search-R1's e5_Flat.index of 21,015,324 vectors of 768 numbers has 64.6 GB; a byte each is a quarter of that."""
    wiki = Size(passages=21_015_324, bytes=14 * 10**9)
    flat, inverted = (needs(find_retriever(name), wiki) for name in ("e5-flat", "e5-ivf"))
    texts = 14e9 + 24 * 21_015_324
    assert flat.disk == pytest.approx(64.6e9 + texts, rel=0.01)
    assert inverted.disk - flat.disk == pytest.approx(64.6e9 / 4, rel=0.02)


def test_parts_share_memory_and_add_up_on_disk():
    wiki = Size(passages=10**6, bytes=6 * 10**8)
    text, vectors, both = (needs(find_retriever(name), wiki) for name in ("bm25", "e5-ivf", "hybrid-e5"))
    assert both.memory == max(text.memory, vectors.memory)
    assert both.disk == text.disk + vectors.disk - (6 * 10**8 + 24 * 10**6)
