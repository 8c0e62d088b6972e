"""Converting: vectors that are there are used again, bit for bit, only where they are those of corpus and encoder."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from searchgym.corpora.passages import passage_line, read_passages
from searchgym.errors import DataMissingError, IndexMismatchError, RunExistsError, UsageError
from searchgym.records import Passage
from searchgym.retrieval import encoders
from searchgym.retrieval.dense.vectors import map_vectors
from searchgym.retrieval.index import convert
from searchgym.retrieval.index.build import build_index, building_folder
from searchgym.retrieval.index.convert import convert_index
from searchgym.retrieval.index.index import describe_files, inspect_index, load_index
from searchgym.retrieval.kinds.bm25 import BM25Card
from searchgym.retrieval.kinds.dense import DenseCard
from searchgym.retrieval.kinds.hybrid import HybridCard
from tests.retrieval.test_dense import (
    DIMENSION,
    ENCODER,
    FLAT,
    HNSW,
    IVF,
    MadeEncoder,
    made_vectors,
    numbered,
    recall,
)

NUMBER = 4000


@pytest.fixture
def table() -> np.ndarray:
    return made_vectors(NUMBER)


@pytest.fixture
def encoder(table: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> MadeEncoder:
    made = MadeEncoder(table)
    monkeypatch.setattr(encoders, "load_encoder", lambda card: made)
    return made


@pytest.fixture
def published(tmp_path: Path, table: np.ndarray) -> Path:
    """A FAISS file as FlashRAG and Search-R1 make theirs."""
    index = faiss.index_factory(DIMENSION, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(table)
    faiss.write_index(index, str(tmp_path / "e5_Flat.index"))
    return tmp_path / "e5_Flat.index"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", numbered(NUMBER))


def write_corpus(path: Path, passages: Sequence[Passage]) -> Path:
    path.write_bytes(b"".join(map(passage_line, passages)))
    return path


def standing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_published_file_becomes_an_index_without_encoding(
    tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path
) -> None:
    manifest = convert_index(published, tmp_path / "flat", FLAT, corpus)
    assert encoder.passages == 4
    file = tmp_path / "flat/dense/index.faiss"
    assert file.samefile(published)
    build_index(numbered(NUMBER), tmp_path / "built", FLAT)
    assert describe_files(tmp_path / "built/dense") == describe_files(tmp_path / "flat/dense")
    built = inspect_index(tmp_path / "built")
    assert (
        manifest.corpus_sha256 == built["corpus_sha256"]
        and manifest.parts["dense"].facts == built["parts"]["dense"]["facts"]
    )
    queries = [str(q) for q in range(30)]
    assert load_index(tmp_path / "flat").search(queries, 5) == load_index(tmp_path / "built").search(queries, 5)


@pytest.mark.slow
@pytest.mark.parametrize("card", [IVF, HNSW], ids=lambda card: card.index)
def test_another_kind_of_index_finds_nearly_the_same(
    tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path, table: np.ndarray, card: DenseCard
) -> None:
    before = published.read_bytes()
    convert_index(published, tmp_path / "i", replace(card, nprobe=64), corpus)
    assert encoder.passages == 4
    assert recall(load_index(tmp_path / "i"), table) > 0.95
    assert inspect_index(tmp_path / "i", verify=True)["parts"]["dense"]["card"]["index"] == card.index
    assert published.read_bytes() == before and not published.samefile(tmp_path / "i/dense/index.faiss")


@pytest.mark.slow_cases
@pytest.mark.parametrize("source", [FLAT, HNSW], ids=lambda card: card.index)
@pytest.mark.parametrize("target", [FLAT, IVF], ids=lambda card: card.index)
def test_an_index_folder_gives_what_building_gives(
    tmp_path: Path, encoder: MadeEncoder, source: DenseCard, target: DenseCard
) -> None:
    for name, card in (("source", source), ("built", target)):
        build_index(numbered(NUMBER), tmp_path / name, card)
    encoder.passages = 0
    convert_index(tmp_path / "source", tmp_path / "converted", target)
    assert encoder.passages == 4
    names = ("dense/index.faiss", "dense/probe.npy", "passages.jsonl")
    converted, built = (describe_files(tmp_path / name) for name in ("converted", "built"))
    assert [converted[name] for name in names] == [built[name] for name in names]


def test_an_index_may_take_its_own_place(tmp_path: Path, encoder: MadeEncoder, table: np.ndarray) -> None:
    build_index(numbered(NUMBER), tmp_path / "i", FLAT)
    with pytest.raises(RunExistsError, match="holds an index: --overwrite replaces it"):
        convert_index(tmp_path / "i", tmp_path / "i", FLAT)
    convert_index(tmp_path / "i", tmp_path / "i", replace(IVF, nprobe=64), overwrite=True)
    assert recall(load_index(tmp_path / "i"), table) > 0.95
    assert standing(tmp_path) == {"i"}


def test_where_files_cannot_have_two_names_they_are_copied(
    tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    convert_index(published, tmp_path / "i", FLAT, corpus)
    assert not published.samefile(tmp_path / "i/dense/index.faiss")
    assert published.read_bytes() == (tmp_path / "i/dense/index.faiss").read_bytes()


def test_other_parts_are_built_beside(tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path) -> None:
    card = HybridCard(of=[BM25Card(), replace(IVF, nprobe=64)])
    convert_index(published, tmp_path / "i", card, corpus)
    assert set(inspect_index(tmp_path / "i")["parts"]) == {"bm25", "dense"}
    (hits,) = load_index(tmp_path / "i", card=BM25Card()).search(["77"], 3)
    assert [hit.passage.id for hit in hits] == ["77"]


@pytest.mark.slow
def test_an_interrupted_conversion_goes_on(
    tmp_path: Path, encoder: MadeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(numbered(NUMBER), tmp_path / "source", HNSW)
    build = convert.build_index
    monkeypatch.setattr(convert, "build_index", lambda *a, **more: build(*a, shard=1000, **more))
    write, written = convert.write_vectors, list[int]()

    def counted(path: Path, start: int, vectors: np.ndarray) -> None:
        if len(written) == 2:
            written.append(-1)
            raise KeyboardInterrupt
        written.append(start)
        write(path, start, vectors)

    monkeypatch.setattr(convert, "write_vectors", counted)
    with pytest.raises(KeyboardInterrupt):
        convert_index(tmp_path / "source", tmp_path / "i", FLAT)
    assert not (tmp_path / "i").exists() and building_folder(tmp_path / "i").exists()
    convert_index(tmp_path / "source", tmp_path / "i", FLAT)
    assert written == [0, 1000, -1, 2000, 3000]
    np.testing.assert_array_equal(map_vectors(tmp_path / "i/dense/index.faiss"), encoder.table)


# -- refused, with nothing written ---------------------------------------------------------------------------------


def refused(tmp_path: Path, error: type[Exception], problem: str, *args: Any) -> None:
    before = standing(tmp_path)
    with pytest.raises(error, match=problem):
        convert_index(args[0], tmp_path / "out", *args[1:])
    assert standing(tmp_path) == before


def test_a_corpus_of_another_size_is_refused(tmp_path: Path, encoder: MadeEncoder, published: Path) -> None:
    for number in (1, NUMBER - 1, NUMBER + 1):
        other = write_corpus(tmp_path / "other.jsonl", numbered(number))
        refused(
            tmp_path, IndexMismatchError, f"holds 4000 vectors, the corpus {number} passages", published, FLAT, other
        )


def test_another_order_of_the_corpus_is_refused(tmp_path: Path, encoder: MadeEncoder, published: Path) -> None:
    other = write_corpus(tmp_path / "other.jsonl", [*numbered(NUMBER)[1:], Passage("0", "", "0")])
    refused(tmp_path, IndexMismatchError, "another vector for passage '1'", published, FLAT, other)


def test_another_encoder_is_refused(
    tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path, table: np.ndarray
) -> None:
    encoder.table = table[:, ::-1].copy()
    refused(tmp_path, IndexMismatchError, "encoder card 'made' .* gives another vector", published, FLAT, corpus)
    encoder.table = table.astype(np.float16).astype(np.float32)
    convert_index(published, tmp_path / "half", FLAT, corpus)
    other = replace(FLAT, encoder=replace(ENCODER, dimension=768, name="e5"))
    refused(
        tmp_path, IndexMismatchError, "vectors of 24 numbers, the encoder card 'e5' gives 768", published, other, corpus
    )


def test_what_is_not_vectors_kept_whole_is_refused(tmp_path: Path, encoder: MadeEncoder, corpus: Path) -> None:
    build_index(numbered(50), tmp_path / "ivf", IVF)
    build_index(numbered(50), tmp_path / "words")
    kept = "no vectors of made in flat or hnsw.*searchgym index build"
    refused(tmp_path, UsageError, rf"{kept}".replace(".*", r".*holds: made in ivf-sq8.*"), tmp_path / "ivf", FLAT)
    refused(tmp_path, UsageError, "holds: no vectors", tmp_path / "words", FLAT)
    refused(tmp_path, UsageError, "stores only one byte of each", tmp_path / "ivf/dense/index.faiss", FLAT, corpus)
    refused(tmp_path, UsageError, "has no dense part", tmp_path / "ivf", "bm25")
    build_index(numbered(50), tmp_path / "flat", FLAT)
    other = replace(FLAT, encoder=replace(ENCODER, passage="passage: {text}"))
    refused(tmp_path, UsageError, "no vectors of made", tmp_path / "flat", other)


def test_files_that_are_no_such_index_are_refused(
    tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path, table: np.ndarray
) -> None:
    made = published.read_bytes()
    with_ids = faiss.IndexIDMap(faiss.IndexFlatIP(DIMENSION))
    with_ids.add_with_ids(table, np.arange(NUMBER))
    distances = faiss.IndexFlatL2(DIMENSION)
    distances.add(table)
    indexes = [faiss.serialize_index(index).tobytes() for index in (with_ids, distances, faiss.IndexFlatIP(DIMENSION))]
    for content in (made[:-4], made + b"more", b"", b"{}\n", *indexes):
        (tmp_path / "bad").write_bytes(content)
        refused(tmp_path, IndexMismatchError, "^bad ", tmp_path / "bad", FLAT, corpus)


def test_source_and_corpus_must_fit(tmp_path: Path, encoder: MadeEncoder, published: Path, corpus: Path) -> None:
    refused(tmp_path, UsageError, "needs the corpus that it was built from", published, FLAT)
    refused(tmp_path, DataMissingError, "no such index folder or FAISS file", tmp_path / "nowhere", FLAT, corpus)
    refused(tmp_path, DataMissingError, "nowhere", published, FLAT, tmp_path / "nowhere")
    build_index(numbered(10), tmp_path / "i", FLAT)
    refused(tmp_path, UsageError, "an index folder must have none", tmp_path / "i", FLAT, corpus)
    manifest = json.loads((tmp_path / "i/manifest.json").read_text())
    (tmp_path / "i/manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    refused(tmp_path, IndexMismatchError, "is of format 1", tmp_path / "i", FLAT)


# -- the real encoder ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_made_outside_of_real_vectors(tmp_path: Path, real_data: Path) -> None:
    """A file of vectors in half precision, of MiniLM by hand, searched as an index of one's own."""
    passages = [p for p, _ in zip(read_passages(real_data / "hotpotqa/corpus.json"), range(8), strict=False)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", passages)
    from searchgym.retrieval.cards import find_encoder

    texts = [f"{p.title}\n{p.text}" for p in passages]
    vectors = encoders.load_encoder(find_encoder("minilm-package")).encode_queries(texts).astype(np.float16)
    index = faiss.index_factory(384, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(vectors.astype(np.float32))
    faiss.write_index(index, str(tmp_path / "real.index"))
    convert_index(tmp_path / "real.index", tmp_path / "i", "minilm-flat", corpus)
    hits = load_index(tmp_path / "i").search([p.text for p in passages], 1)
    assert [own[0].passage for own in hits] == passages
    refused(
        tmp_path,
        IndexMismatchError,
        "another vector",
        tmp_path / "real.index",
        "minilm-flat",
        write_corpus(tmp_path / "turned.jsonl", passages[::-1]),
    )
