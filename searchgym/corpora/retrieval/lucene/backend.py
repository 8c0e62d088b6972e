"""BM25 by Lucene, through the classes of pyserini: as a part of an index folder, or over an index that pyserini made.

Documents are analysed as pyserini does by default (Porter's stemmer, English stop words). ``lucene/`` of an index
folder holds them in corpus order, so that Lucene's number of a document is the passage's position; they store the id
only, as ``id``, and pyserini can search the folder too.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.retrieval.backends import Progress
from searchgym.corpora.retrieval.cards import LuceneCard
from searchgym.corpora.retrieval.lucene.build import ANALYSER, INDEX, LuceneBuilder, directory, needs
from searchgym.corpora.retrieval.lucene.java import Java, java_said, java_text, jnius, leaves_java, start_java
from searchgym.corpora.retrieval.remote import wire
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.corpora.store import PassageStore
from searchgym.errors import IndexMismatchError, RetrieverError, UsageError
from searchgym.records import Hit, Passage

BLOCK: Final = 64
"""Queries that a thread searches before it takes more, at most."""
READ: Final = 1_000
"""Stored documents that are read at once."""
_SEARCH: Final = "org.apache.lucene.search"
_STORED: Final = ("raw", "contents")
"""Fields in which pyserini stores a document, as JSON or as its contents alone."""

_turn = threading.RLock()
"""For whoever has Lucene do something. pyjnius keeps the object that a method is called on in the method, which all
objects of a class share: two threads that search two indexes could both search the one. A search's own threads are let
through, as they call methods of the same objects; where they do not, they take `_reading`."""
_reading = threading.Lock()
"""For stored documents, of which each call has its own."""

__all__ = ["LuceneRetriever", "builder", "load", "needs"]
builder = LuceneBuilder


def load(
    card: LuceneCard, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> LuceneRetriever:
    """Opens the part, memory-mapped."""
    return LuceneRetriever(folder, card, passages, sha256, in_order=not facts.get("taken"))


class LuceneRetriever:
    """Searches a Lucene index. Safe to use from several threads, which take turns; a copy is the retriever itself.

    A hit always has a score above 0: a query without known words has no hits. Ties are broken by passage order where
    documents are in that order, else as pyserini does, by id as a string; at the boundary too. A query is taken as
    its words, whatever signs are among them, and however many they are.

    Args:
        folder: Of the Lucene index.
        card: How to search.
        passages: All passages; None where the index stores documents.
        corpus_sha256: Identity of the corpus, None if there is none.
        in_order: Document n is passage n; else passages are found by the documents' ids.

    Raises:
        IndexMismatchError: The index is damaged, or not of these passages.
        RetrieverError: It stores documents that are no JSON of id and contents.
        UsageError: Neither passages nor stored documents; pyserini or a JDK is missing.
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
            java(f"{_SEARCH}.IndexSearcher").setMaxClauseCount(2**31 - 1)  # words of a query; 1024 by default
            self._analyser = java(ANALYSER).newDefaultInstance()
            self._generator = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
            self._size = int(self._reader.numDocs())
            with _reading:
                self._check()
            self._sort = None if self._in_order else _by_id(java, self._reader)
        except jnius().JavaException as error:
            raise IndexMismatchError(f"{self.folder.name} cannot be read: {java_said(error)}") from error

    def __len__(self) -> int:
        """Returns the number of passages."""
        return self._size if self._passages is None else len(self._passages)

    def passages(self) -> Iterator[Passage]:
        """Yields all passages in corpus order; stored documents in Lucene's order."""
        if self._passages is not None:
            yield from self._passages
            return
        for start in range(0, self._size, READ):
            yield from self._stored(start, min(start + READ, self._size))

    def passage(self, position: int) -> Passage:
        """Returns the passage at a position, 0 to len - 1, in the order of `passages`."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} passages")
        return self._stored(position, position + 1)[0] if self._passages is None else self._passages[position]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        return {"kind": "lucene", "k1": self.card.k1, "b": self.card.b, "analyser": ANALYSER.rpartition(".")[2]}

    def __deepcopy__(self, memo: dict[int, Any]) -> LuceneRetriever:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LuceneRetriever, (self.folder, self.card, self._passages, self.corpus_sha256, self._in_order)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the best passages for each query, searched by the card's threads.

        Args:
            queries: Any texts.
            k: Hits wanted per query, at least 1; may exceed the number of passages.

        Returns:
            Per query at most k hits, best first, fewer where fewer passages share a word with the query.

        Raises:
            UsageError: `queries` is a single string, or `k` is below 1.
            RetrieverError: Lucene failed.
        """
        check_request(queries, k)
        if os.getpid() != self._process:
            raise RetrieverError(
                "Java does not live on in a forked process: open the index there, or start processes by spawn"
            )
        k = max(1, min(k, self._size))
        threads = min(self.card.threads or os.cpu_count() or 1, len(queries))
        with _turn:
            return self._in_threads(queries, k, threads) if threads > 1 else self._block(queries, k)

    def _in_threads(self, queries: Sequence[str], k: int, threads: int) -> list[list[Hit]]:
        size = min(BLOCK, -(-len(queries) // threads))
        blocks = [queries[start : start + size] for start in range(0, len(queries), size)]
        pool = ThreadPoolExecutor(threads, "searchgym-lucene")
        try:
            found = pool.map(self._block, blocks, [k] * len(blocks))
            return [hits for block in found for hits in block]
        finally:
            pool.shutdown(cancel_futures=True)

    @leaves_java
    def _block(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        try:
            documents = self._reader.storedFields()
            return [self._one(query, k, documents) for query in queries]
        except jnius().JavaException as error:
            raise RetrieverError(f"Lucene failed in {self.folder}: {java_said(error)}") from error

    def _one(self, query: str, k: int, documents: Any) -> list[Hit]:
        words = self._generator.buildQuery("contents", self._analyser, java_text(self._java, query))
        if self._sort is None:
            top = self._searcher.search(words, k)
        else:
            top = self._searcher.search(words, k, self._sort, True)
        found = [(hit.doc, hit.score) for hit in top.scoreDocs]
        return [Hit(self._passage(number, documents), score) for number, score in found if score > 0]

    def _passage(self, number: int, documents: Any) -> Passage:
        """Returns the passage of a document."""
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
            raise RetrieverError(f"{self.folder} found {id!r}, which is no passage of the corpus given") from None

    @leaves_java
    def _stored(self, start: int, end: int) -> list[Passage]:
        """Returns stored documents, by Lucene's numbers."""
        try:
            with _turn, _reading:
                documents = self._reader.storedFields()
                return [_read_stored(documents.document(number), self.folder) for number in range(start, end)]
        except jnius().JavaException as error:
            raise RetrieverError(f"Lucene failed in {self.folder}: {java_said(error)}") from error

    def _check(self) -> None:
        """Refuses an index that is not of its passages, as far as its size and its ends tell."""
        documents, store, name = self._reader.storedFields(), self._passages, self.folder.name
        if int(self._reader.maxDoc()) != self._size:
            raise IndexMismatchError(
                f"{name} holds documents that were deleted: make it anew with pyserini's -optimize"
            )
        ends = [documents.document(number) for number in sorted({0, self._size - 1})] if self._size else []
        if store is None:
            for document in ends:
                if not any(document.get(field) for field in _STORED):
                    raise UsageError(
                        f"{self.folder} stores no documents: give the corpus that it was made of, or make it with "
                        "pyserini's --storeRaw"
                    )
                _read_stored(document, self.folder)
        elif self._in_order:
            if self._size != len(store):
                raise IndexMismatchError(f"{name} counts {self._size} passages, not {len(store)}")
            for document, position in zip(ends, (0, self._size - 1), strict=False):
                if document.get("id") != store[position].id.encode("utf-8", "replace").decode():
                    raise IndexMismatchError(f"{name} has another passage {position} than the corpus")
        else:
            for document in ends:
                try:
                    store.position(document.get("id"))
                except KeyError:
                    raise IndexMismatchError(
                        f"{self.folder} holds {document.get('id')!r}, which is no passage of the corpus given"
                    ) from None


# -- Lucene --------------------------------------------------------------------------------------------------------


def _by_id(java: Java, reader: Any) -> Any:
    """Returns pyserini's order of hits: by score, then by id; None, which is Lucene's own, if ids cannot be sorted by.

    Indexes that Lucene 8 made cannot.
    """
    info = java(f"{INDEX}.FieldInfos").getMergedFieldInfos(reader).fieldInfo("id")
    if info is None or info.getDocValuesType().toString() != "BINARY":
        return None
    field = java(f"{_SEARCH}.SortField")
    return java(f"{_SEARCH}.Sort")(field.FIELD_SCORE, field("id", java(f"{_SEARCH}.SortField$Type").STRING_VAL))


def _read_stored(document: Any, folder: Path) -> Passage:
    """Reads a document that pyserini stored: its JSON, else its contents."""
    raw, id = document.get("raw"), document.get("id")
    if raw is None:
        return wire.read_contents(document.get("contents") or "", id)
    try:
        return wire.read_document({"id": id} | json.loads(raw))
    except (ValueError, TypeError, KeyError) as error:
        raise RetrieverError(f"{folder}: document {id!r} is not JSON of id and contents: {error!r}") from error


def _close(reader: Any, process: int) -> None:
    """Closes a reader that nobody uses any more, unless it is a forked process's."""
    # It may run in a search's own thread: better left open than waited for.
    if os.getpid() == process and _turn.acquire(blocking=False):
        try:
            reader.close()
        finally:
            _turn.release()
