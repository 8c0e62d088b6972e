"""Creates index folders from existing indexes, without encoding or indexing the corpus again.

The source is an index folder, whose vectors are put into another type of index, or published files such as those of
Search-R1: ``e5_Flat.index``, the vectors of ``wiki-18.jsonl``, and its Lucene index, ``bm25``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from searchgym.corpora.documents import open_corpus
from searchgym.corpora.files import FilePath
from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import DataError, DataMissingError, IndexMismatchError, UsageError
from searchgym.reading import leads_out
from searchgym.records import Passage
from searchgym.retrieval import encoders
from searchgym.retrieval.cards import Builder, PartCard, Progress, RetrieverCard, find_retriever, parts_of, quiet
from searchgym.retrieval.dense.backend import INDEX, DenseBuilder, check_probes, probe_positions
from searchgym.retrieval.dense.vectors import describe, link, open_index, write_vectors
from searchgym.retrieval.index.build import build_index, check_free
from searchgym.retrieval.index.index import IndexManifest, IndexPart, inspect_index, shipped_parts
from searchgym.retrieval.kinds.dense import DenseCard
from searchgym.retrieval.kinds.lucene import LuceneCard
from searchgym.retrieval.lucene.backend import LuceneRetriever, is_lucene, open_lucene


def convert_index(
    source: FilePath,
    out: FilePath,
    card: str | dict[str, Any] | RetrieverCard,
    corpus: FilePath | None = None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    progress: Progress = quiet,
) -> IndexManifest:
    """Builds an index folder from existing vectors or from a Lucene index; can be resumed like `build_index`.

    Vectors are taken from ``flat`` and ``hnsw``, which store them unchanged. From flat to flat the file is hard-linked,
    or copied to another file system. Parts of the card that are not dense are built from the corpus.

    Before anything is written, up to four passages are encoded and compared with their vectors: half precision on
    either side passes the check, another encoder, template or passage does not (`dense.backend.LEAST_COSINE`).

    Args:
        source: Index folder, a FAISS file of inner products, or a Lucene index made by pyserini.
        out: Folder to create.
        card: Retriever card, its name, its path or a mapping. It must have a dense part, or
            for a Lucene index a Lucene part.
        corpus: Corpus of a FAISS file, in the order of its vectors: any source that `open_corpus` reads. It is read
            twice. For a Lucene index, the corpus with the same ids; not needed if the index stores its documents.
        overwrite: Whether to replace an existing index.
        restart: Whether to discard an interrupted build with other settings.
        progress: Called during each stage.

    Returns:
        The manifest of the new index folder.

    Raises:
        UsageError: The card has no dense part; the source has no unchanged vectors of its encoder; a corpus is missing,
            or is given for an index folder; or the encoder cannot be used (see `encoders.Encoder`).
        DataMissingError: The source, the corpus or the encoder does not exist.
        IndexMismatchError: The source is damaged, or its vectors are not those of this corpus by this encoder.
        RunExistsError: `out` cannot be built; see `build_index`.
    """
    source, out, card = Path(source), Path(out), find_retriever(card)
    kind = "lucene" if is_lucene(source) else "vectors"
    parts = [part for part in parts_of(card) if part.takes == kind]
    if not parts:
        of = f"the retriever card {card.name or card.kind!r}"
        if kind == "lucene":
            raise UsageError(f"{source} is a Lucene index, {of} has no such part")
        raise UsageError(f"{of} has no dense part: there is nothing to convert")
    check_free(out, overwrite)
    take: Callable[[Any, Path, Path, Progress], Builder]
    if kind == "lucene":
        take = partial(_Taker, source)
        passages = open_lucene(source).passages() if corpus is None else open_corpus(corpus)
    else:
        take = partial(_Converter, _checked_vectors(source, corpus, cast(list[DenseCard], parts)))
        passages = iter(PassageStore(source)) if corpus is None else open_corpus(corpus)

    def make(part: PartCard, folder: Path, shards: Path, progress: Progress) -> Builder:
        builder = partial(take, part) if part.takes == kind else part.builder
        return builder(folder, shards, progress)

    return build_index(
        passages,
        out,
        card,
        overwrite=overwrite,
        restart=restart,
        make=make,
        source=str(source.resolve()),
        progress=progress,
    )


class _Taker(Builder):
    """Builder of a Lucene part that reuses an existing index, `source`, unchanged."""

    def __init__(self, source: Path, card: LuceneCard, folder: Path, shards: Path, progress: Progress) -> None:
        self._source, self._card, self._folder = source, card, folder

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Links or copies the files of the index, and checks that it was made from these passages."""
        shutil.rmtree(self._folder)  # may hold files of an interrupted build
        self._folder.mkdir()
        for file in sorted(self._source.iterdir()):
            if leads_out(file, self._source):
                raise DataError("is a link that leads out of the index: remove it, or replace it by the file", file)
            if file.is_file() and file.name != "write.lock":
                link(file, self._folder / file.name)
        LuceneRetriever(self._folder, self._card, passages)
        return {"taken": True}


class _Converter(DenseBuilder):
    """Builder of a dense part from the vectors in a FAISS file, which is used as it is if it is flat."""

    def __init__(self, file: Path, card: DenseCard, folder: Path, shards: Path, progress: Progress) -> None:
        super().__init__(card, folder, shards, progress)
        self._flat = file if describe(file).kind == "flat" else None
        self._index = None if self._flat else open_index(file)

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Copies the vectors of a shard, unless the whole file can be used as it is."""
        if self._index is not None:
            write_vectors(self._vectors, start, self._index.reconstruct_n(start, len(passages)))


def _checked_vectors(source: Path, corpus: FilePath | None, cards: Sequence[DenseCard]) -> Path:
    """Returns the file of a source with its vectors, after checking that they fit all cards and the corpus."""
    if not source.exists():
        raise DataMissingError("no such index folder or FAISS file: check the path", source)
    if source.is_dir() == (corpus is not None):
        raise UsageError(
            f"{source}: a FAISS file needs the corpus that it was built from (--corpus), an index folder must have none"
        )
    file = _kept_whole(source, cards) if corpus is None else source
    described = describe(file)
    if described.kind == "ivf-sq8":
        raise UsageError(f"{file} stores only one byte of each number: vectors can be taken from flat or hnsw only")
    for card in cards:
        if card.encoder.dimension != described.dimension:
            raise IndexMismatchError(
                f"{file} holds vectors of {described.dimension} numbers, the encoder card {card.encoder.name!r} gives "
                f"{card.encoder.dimension}: name the retriever card of the encoder that made the file"
            )
    positions = probe_positions(described.vectors)
    chosen, number = _some_passages(source, corpus, positions)
    if number != described.vectors:
        raise IndexMismatchError(
            f"{file} holds {described.vectors} vectors, the corpus {number} passages: give the corpus it was built from"
        )
    index = open_index(file)
    vectors = np.stack([index.reconstruct(position) for position in positions])
    for card in cards:
        check_probes(encoders.load_encoder(card.encoder), chosen, vectors)
    return file


def _kept_whole(folder: Path, cards: Sequence[DenseCard]) -> Path:
    """Returns the file of an index folder that stores, unchanged, the vectors that all cards need."""
    stored = []
    parts = {name: IndexPart(**part) for name, part in inspect_index(folder)["parts"].items()}
    for name, part in shipped_parts(parts).items():
        if part.takes == "vectors":
            card = cast(DenseCard, part)
            stored.append(f"{card.encoder.name} in {card.index}")
            same = all(card.encoder.vectors() == other.encoder.vectors() for other in cards)
            if same and card.index != "ivf-sq8":
                return folder / str(name) / INDEX
    names = ", ".join(card.encoder.name for card in cards)
    raise UsageError(
        f"{folder} holds no vectors of {names} in flat or hnsw, which store them unchanged (it holds: "
        f"{', '.join(stored) or 'no vectors'}): build from the corpus with `searchgym index build`"
    )


def _some_passages(source: Path, corpus: FilePath | None, positions: Sequence[int]) -> tuple[list[Passage], int]:
    """Returns the passages at some positions (those that exist), and the number of all passages."""
    if corpus is None:
        store = PassageStore(source)
        return [store[position] for position in positions if position < len(store)], len(store)
    chosen, number = [], 0
    for number, passage in enumerate(open_corpus(corpus), start=1):
        if number - 1 in positions:
            chosen.append(passage)
    return chosen, number
