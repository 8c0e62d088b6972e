"""Building a Lucene index with the classes of pyserini, as a part of an index folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.retrieval.backends import Needs, Progress
from searchgym.corpora.retrieval.bm25.search import contents
from searchgym.corpora.retrieval.cards import LuceneCard
from searchgym.corpora.retrieval.lucene.java import (
    Java,
    heap_bytes,
    java_said,
    java_text,
    jnius,
    leaves_java,
    start_java,
)
from searchgym.corpora.store import PassageStore
from searchgym.records import Passage

COMMIT: Final = 100_000
"""Passages after which a build commits: what is lost at most when it is interrupted."""
REPORT: Final = 1_000
"""Passages after which a build tells of its progress."""
ANALYSER: Final = "io.anserini.analysis.DefaultEnglishAnalyzer"
INDEX: Final = "org.apache.lucene.index"
_DOCUMENT: Final = "org.apache.lucene.document"


def needs(card: LuceneCard, passages: int, text: int) -> Needs:
    """Returns what a build takes: Java's heap and machine in memory; on disk the index, twice while it merges."""
    return Needs(heap_bytes(card.memory) + int(500e6), int(2 * (0.35 * text + 40 * passages)))


class LuceneBuilder:
    """Indexes all passages at the end, by commits: an interrupted build goes on from the last one."""

    def __init__(self, card: LuceneCard, folder: Path, shards: Path, progress: Progress) -> None:
        self._java = start_java(card.memory)  # before the corpus is read
        self._memory, self._folder, self._progress = heap_bytes(card.memory), folder, progress

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Needs nothing."""

    @leaves_java
    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Indexes what is not indexed yet.

        Raises:
            OSError: Lucene cannot write, or not read what an interrupted build left.
        """
        try:
            writer = self._writer()
            try:
                self._write(writer, passages)
            finally:
                writer.rollback()  # of what is not committed; closes
        except jnius().JavaException as error:
            # no DataError: nothing is wrong with the corpus, and what other parts have made of it is of use
            raise OSError(
                f"{self._folder}: Lucene cannot index: {java_said(error)}; to begin anew: --restart"
            ) from error
        (self._folder / "write.lock").unlink(missing_ok=True)
        version = self._java("org.apache.lucene.util.Version").LATEST.toString()
        return {"lucene": version, "analyser": ANALYSER.rpartition(".")[2]}

    def _writer(self) -> Any:
        """Returns a writer that keeps documents in the order in which they come: one thread, neighbours merged."""
        java = self._java
        config = java(f"{INDEX}.IndexWriterConfig")(java(ANALYSER).newDefaultInstance())
        config.setMergePolicy(java(f"{INDEX}.LogByteSizeMergePolicy")())
        config.setMergeScheduler(java(f"{INDEX}.SerialMergeScheduler")())
        config.setRAMBufferSizeMB(min(512.0, self._memory / 2**20 / 4))
        return java(f"{INDEX}.IndexWriter")(directory(java, self._folder), config)

    def _write(self, writer: Any, passages: PassageStore) -> None:
        add = _adder(self._java, writer)
        for position in range(int(writer.getDocStats().numDocs), len(passages)):
            if position % REPORT == 0:
                self._progress("indexing by Lucene", position, len(passages))
            if position % COMMIT == 0:
                writer.commit()
            add(passages[position])
        writer.commit()
        self._progress("indexing by Lucene", len(passages), len(passages))


def _adder(java: Java, writer: Any) -> Callable[[Passage], None]:
    """Returns what indexes a passage, with the fields that pyserini writes."""
    cast = jnius().cast
    empty = java("java.lang.String")("")
    indexed = java(f"{_DOCUMENT}.FieldType")()
    indexed.setIndexOptions(java(f"{INDEX}.IndexOptions").DOCS_AND_FREQS)
    id_field = java(f"{_DOCUMENT}.StringField")("id", empty, java(f"{_DOCUMENT}.Field$Store").YES)
    id_value = java(f"{_DOCUMENT}.BinaryDocValuesField")("id", java("org.apache.lucene.util.BytesRef")(b""))
    text_field = java(f"{_DOCUMENT}.Field")(
        "contents", cast("java.lang.CharSequence", empty), cast(f"{INDEX}.IndexableFieldType", indexed)
    )
    document = java(f"{_DOCUMENT}.Document")()
    for field in (id_field, id_value, text_field):
        document.add(cast(f"{INDEX}.IndexableField", field))

    def add(passage: Passage) -> None:
        id_field.setStringValue(java_text(java, passage.id))
        id_value.setBytesValue(passage.id.encode("utf-8", "replace"))
        text_field.setStringValue(java_text(java, contents(passage)))
        writer.addDocument(document)

    return add


def directory(java: Java, folder: Path) -> Any:
    """Returns a folder as Lucene takes it."""
    path = java("java.io.File")(java_text(java, str(folder.absolute()))).toPath()
    return java("org.apache.lucene.store.FSDirectory").open(path)
