"""The back end ``lucene`` of index folders, which searches by BM25 through pyserini's classes.

It also searches indexes that pyserini made. Documents are analysed as pyserini does by default (Porter stemmer, English
stop words). The part ``lucene/`` of an index folder holds the documents in corpus order, so that Lucene's document
number is the passage's position. A document stores only its id, as ``id``; pyserini can search the folder too.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

from searchgym.corpora.files import FilePath
from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import DataMissingError, IndexMismatchError, RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval import wire
from searchgym.retrieval.cards import PartCard, Progress, RetrieverCard, Sources, find_retriever
from searchgym.retrieval.kinds.lucene import LuceneCard
from searchgym.retrieval.lucene.build import ANALYSER, INDEX, LuceneBuilder, directory, needs
from searchgym.retrieval.lucene.java import java_said, java_text, jnius, leaves_java, start_java
from searchgym.retrieval.retriever import CorpusRetriever, check_request

BLOCK: Final = 64
"""Maximum number of queries that a thread searches at once."""
READ: Final = 1_000
"""Number of stored documents read at once."""
_SEARCH: Final = "org.apache.lucene.search"
_STORED: Final = ("raw", "contents")
"""Fields in which pyserini stores a document: as JSON, or only its contents."""

_turn = threading.RLock()
"""Lock for every use of Lucene.

pyjnius stores the object that a method is called on in the method itself, which all objects of a class share: two
threads that search two indexes could both search the same one. The threads of one search need no lock between them,
because they call methods of the same objects; otherwise they acquire `_reading`.
"""
_reading = threading.Lock()
"""Lock for reading stored documents, for which each call uses a separate object."""

__all__ = ["LuceneRetriever", "builder", "load", "needs"]
builder = LuceneBuilder


def load(
    card: LuceneCard, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> LuceneRetriever:
    """Returns a retriever over the Lucene part of an index folder, memory-mapped; see `PartCard.load`."""
    return LuceneRetriever(folder, card, passages, sha256, in_order=not facts.get("taken"))


class LuceneRetriever:
    """Retriever that searches a Lucene index. Several threads may share it and take turns; it is never copied.

    A hit always has a score above 0, so a query without known words has no hits. Ties are broken, also at rank
    k, by passage order if documents are in that order, else by id as a string, as in pyserini. A query may have any
    number of words; Lucene's query syntax in it has no effect.

    Args:
        folder: Folder of the Lucene index.
        card: Card to search by.
        passages: All passages of the corpus; None if the index stores the documents.
        corpus_sha256: sha256 of the corpus, None if it is unknown.
        in_order: Whether document n is passage n; otherwise passages are found by the documents' ids.

    Raises:
        IndexMismatchError: The index is damaged, or was made from other passages.
        RetrieverError: A stored document is not JSON of id and contents.
        UsageError: `passages` is None and the index stores no documents; or pyserini or a JDK is missing.
    """

    in_process = True  # a search cannot hang: `retrieve` need not watch it from another thread

    def __init__(
        self,
        folder: Path,
        card: LuceneCard,
        passages: PassageStore | None = None,
        corpus_sha256: str | None = None,
        in_order: bool = False,
    ) -> None:
        self.folder, self.card, self.corpus_sha256 = folder, card, corpus_sha256
        self._passages, self._in_order, self._process = passages, in_order, os.getpid()
        self._java = start_java(card.memory)
        with _turn:
            self._open()

    @leaves_java
    def _open(self) -> None:
        java, card = self._java, self.card
        try:
            reader = java(f"{INDEX}.DirectoryReader").open(directory(java, self.folder))
            self._reader = jnius().cast(f"{INDEX}.IndexReader", reader)
            weakref.finalize(self, _close, self._reader, self._process).atexit = False
            self._searcher = java(f"{_SEARCH}.IndexSearcher")(self._reader)
            self._searcher.setSimilarity(java(f"{_SEARCH}.similarities.BM25Similarity")(card.k1, card.b))
            java(f"{_SEARCH}.IndexSearcher").setMaxClauseCount(2**31 - 1)  # words per query; 1024 by default
            self._analyser = java(ANALYSER).newDefaultInstance()
            self._generator = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
            self._size = int(self._reader.numDocs())
            with _reading:
                self._check()
            self._sort = None
            info = java(f"{INDEX}.FieldInfos").getMergedFieldInfos(self._reader).fieldInfo("id")
            # pyserini's order of hits, by score and then by id, which older indexes (Lucene 8) do not support
            if not self._in_order and info is not None and info.getDocValuesType().toString() == "BINARY":
                field = java(f"{_SEARCH}.SortField")
                by_id = field("id", java(f"{_SEARCH}.SortField$Type").STRING_VAL)
                self._sort = java(f"{_SEARCH}.Sort")(field.FIELD_SCORE, by_id)
        except jnius().JavaException as error:
            raise IndexMismatchError(f"{self.folder.name} cannot be read: {java_said(error)}") from error

    def __len__(self) -> int:
        """Returns the number of passages."""
        return self._size if self._passages is None else len(self._passages)

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order; if the index stores the documents, in Lucene's order."""
        if self._passages is not None:
            yield from self._passages
            return
        for start in range(0, self._size, READ):
            yield from self._stored(start, min(start + READ, self._size))

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, from 0 to len - 1, in the order of `passages`."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} passages")
        return self._stored(position, position + 1)[0] if self._passages is None else self._passages[position]

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, apart from the corpus."""
        return {"kind": "lucene", "k1": self.card.k1, "b": self.card.b, "analyser": ANALYSER.rpartition(".")[2]}

    def __deepcopy__(self, memo: dict[int, Any]) -> LuceneRetriever:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LuceneRetriever, (self.folder, self.card, self._passages, self.corpus_sha256, self._in_order)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the best passages for each query, using the number of threads in the card.

        Args:
            queries: Any texts.
            k: Number of hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            At most k hits per query, best first; fewer if fewer passages share a word with the query.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
            RetrieverError: Lucene failed.
        """
        check_request(queries, k)
        if os.getpid() != self._process:
            raise RetrieverError("Java does not survive in a forked process: open the index there, or use spawn")
        k = max(1, min(k, self._size))
        threads = min(self.card.threads or os.cpu_count() or 1, len(queries))
        with _turn:
            if threads <= 1:
                return self._block(queries, k)
            size = min(BLOCK, -(-len(queries) // threads))
            blocks = [queries[start : start + size] for start in range(0, len(queries), size)]
            pool = ThreadPoolExecutor(threads, "searchgym-lucene")
            try:
                return list(itertools.chain.from_iterable(pool.map(self._block, blocks, [k] * len(blocks))))
            finally:
                pool.shutdown(cancel_futures=True)

    @leaves_java
    def _block(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        try:
            documents, results = self._reader.storedFields(), []
            for query in queries:
                words = self._generator.buildQuery("contents", self._analyser, java_text(self._java, query))
                order = () if self._sort is None else (self._sort, True)
                top = self._searcher.search(words, k, *order)
                scored = [(hit.doc, hit.score) for hit in top.scoreDocs]
                results.append([Hit(self._passage(number, documents), score) for number, score in scored if score > 0])
            return results
        except jnius().JavaException as error:
            raise RetrieverError(f"Lucene failed in {self.folder}: {java_said(error)}") from error

    def _passage(self, number: int, documents: Any) -> Passage:
        """Returns the passage of the document with a number, from the corpus or from the index."""
        if self._passages is None:
            with _reading:
                return _read_stored(documents.document(number), self.folder)
        if self._in_order:
            return self._passages[number]
        with _reading:
            id = documents.document(number).get("id")
        try:
            return self._passages[self._passages.position(id)]
        except KeyError:
            raise RetrieverError(f"{self.folder} found {id!r}, which is not a passage of the given corpus") from None

    @leaves_java
    def _stored(self, start: int, end: int) -> list[Passage]:
        """Returns the stored documents ``start`` to ``end - 1``, by Lucene's numbers, as passages."""
        try:
            with _turn, _reading:
                documents = self._reader.storedFields()
                return [_read_stored(documents.document(number), self.folder) for number in range(start, end)]
        except jnius().JavaException as error:
            raise RetrieverError(f"Lucene failed in {self.folder}: {java_said(error)}") from error

    def _check(self) -> None:
        """Raises an error if the size, first or last document of the index is not that of its passages."""
        documents, store, name = self._reader.storedFields(), self._passages, self.folder.name
        if int(self._reader.maxDoc()) != self._size:
            raise IndexMismatchError(f"{name} holds deleted documents: build it again with pyserini's -optimize")
        ends = [documents.document(number) for number in sorted({0, self._size - 1})] if self._size else []
        if store is None:
            for document in ends:
                if not any(document.get(field) for field in _STORED):
                    raise UsageError(
                        f"{self.folder} stores no documents: give the corpus that it was built from, or build it with "
                        "pyserini's --storeRaw"
                    )
                _read_stored(document, self.folder)
        elif self._in_order:
            if self._size != len(store):
                raise IndexMismatchError(f"{name} counts {self._size} passages, not {len(store)}")
            for document, position in zip(ends, (0, self._size - 1), strict=False):
                if document.get("id") != store[position].id.encode("utf-8", "replace").decode():
                    raise IndexMismatchError(f"{name} differs from the corpus in passage {position}")
        else:
            for document in ends:
                try:
                    store.position(document.get("id"))
                except KeyError:
                    raise IndexMismatchError(
                        f"{self.folder} holds {document.get('id')!r}, which is not a passage of the given corpus"
                    ) from None


def _read_stored(document: Any, folder: Path) -> Passage:
    """Returns the passage in a document that pyserini stored, from its JSON or else from its contents."""
    raw, id = document.get("raw"), document.get("id")
    if raw is None:
        return wire.read_contents(document.get("contents") or "", id)
    try:
        return wire.read_document({"id": id} | json.loads(raw))
    except (ValueError, TypeError, KeyError) as error:
        raise RetrieverError(f"{folder}: document {id!r} is not JSON of id and contents: {error!r}") from error


def _close(reader: Any, process: int) -> None:
    """Closes the reader of a garbage-collected retriever, unless in a forked process or during a search."""
    if os.getpid() == process and _turn.acquire(blocking=False):
        try:
            reader.close()
        finally:
            _turn.release()


def is_lucene(folder: FilePath) -> bool:
    """Returns whether a folder holds a Lucene index."""
    return any(Path(folder).glob("segments_*"))


def open_lucene(
    folder: FilePath,
    passages: PassageStore | None = None,
    card: str | dict[str, Any] | RetrieverCard | None = None,
) -> CorpusRetriever:
    """Returns the retriever of a Lucene index that pyserini made with its default analysis.

    Args:
        folder: Folder made by ``python -m pyserini.index.lucene --collection JsonCollection --index FOLDER ...``.
        passages: The indexed passages; not needed if the index stores its documents (``--storeRaw``).
        card: Card of kind ``lucene``, or one that wraps such a card. Default: pyserini's settings.

    Raises:
        DataMissingError: The folder holds no Lucene index.
        UsageError: The index stores no documents and no passages are given; the card needs a part of another
            kind; or pyserini or a JDK is missing.
        IndexMismatchError: The index is damaged, or was made from other passages.
    """
    folder = Path(folder)
    if not is_lucene(folder):
        raise DataMissingError("holds no Lucene index (no segments_N)", folder)

    def part(card: PartCard) -> CorpusRetriever:
        if card.takes != "lucene":
            raise UsageError(f"{folder} is only a Lucene index: it has no part of kind {card.kind!r}")
        return LuceneRetriever(folder, cast(LuceneCard, card), passages)

    return Sources(part=part).open_corpus(LuceneCard() if card is None else find_retriever(card), folder)
