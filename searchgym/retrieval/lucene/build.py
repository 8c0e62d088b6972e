"""Builds the Lucene part of an index folder with pyserini's classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.store.reader import PassageStore
from searchgym.records import Passage
from searchgym.retrieval.bm25.search import contents
from searchgym.retrieval.cards import Builder, Needs, Progress
from searchgym.retrieval.kinds.lucene import LuceneCard
from searchgym.retrieval.lucene.java import Java, heap_bytes, java_said, java_text, jnius, leaves_java, start_java

COMMIT: Final = 100_000
"""Number of passages between two commits of a build; an interruption loses at most this many."""
REPORT: Final = 1_000
"""Number of passages between two reports of progress."""
ANALYSER: Final = "io.anserini.analysis.DefaultEnglishAnalyzer"
"""Java class of the analyser."""
INDEX: Final = "org.apache.lucene.index"
"""Java package of Lucene's index classes."""
_DOCUMENT: Final = "org.apache.lucene.document"


def needs(card: LuceneCard, passages: int, text: int) -> Needs:
    """Returns the needs of a build: memory for Java and its heap, disk for twice the index (while it merges)."""
    return Needs(heap_bytes(card.memory) + int(500e6), int(2 * (0.35 * text + 40 * passages)))


class LuceneBuilder(Builder):
    """Builder of a Lucene part: indexes all passages at the end; an interrupted build resumes at the last commit."""

    def __init__(self, card: LuceneCard, folder: Path, shards: Path, progress: Progress) -> None:
        self._java = start_java(card.memory)  # at once, so that a missing JDK is reported before the corpus is read
        self._memory, self._folder, self._progress = heap_bytes(card.memory), folder, progress

    @leaves_java
    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Indexes the passages that are not indexed yet, and returns the versions of Lucene and the analyser.

        Raises:
            OSError: Lucene cannot write the index, or cannot read that of an interrupted build.
        """
        java = self._java
        try:
            config = java(f"{INDEX}.IndexWriterConfig")(java(ANALYSER).newDefaultInstance())
            # Documents stay in the order of addition: one thread, merges of neighbours only.
            config.setMergePolicy(java(f"{INDEX}.LogByteSizeMergePolicy")())
            config.setMergeScheduler(java(f"{INDEX}.SerialMergeScheduler")())
            config.setRAMBufferSizeMB(min(512.0, self._memory / 2**20 / 4))
            writer = java(f"{INDEX}.IndexWriter")(directory(java, self._folder), config)
            try:
                add = _adder(java, writer)
                for position in range(int(writer.getDocStats().numDocs), len(passages)):
                    if position % REPORT == 0:
                        self._progress("indexing by Lucene", position, len(passages))
                    if position % COMMIT == 0:
                        writer.commit()
                    add(passages[position])
                writer.commit()
                self._progress("indexing by Lucene", len(passages), len(passages))
            finally:
                writer.rollback()  # closes the writer and drops uncommitted documents
        except jnius().JavaException as error:
            # Not a DataError: the corpus is not at fault, so the build keeps its shards and can be resumed.
            raise OSError(
                f"{self._folder}: Lucene cannot index: {java_said(error)}; to start again: --restart"
            ) from error
        (self._folder / "write.lock").unlink(missing_ok=True)
        version = java("org.apache.lucene.util.Version").LATEST.toString()
        return {"lucene": version, "analyser": ANALYSER.rpartition(".")[2]}


def _adder(java: Java, writer: Any) -> Callable[[Passage], None]:
    """Returns a function that adds a passage to the index, with the fields that pyserini writes."""
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
    """Returns a folder as a Lucene ``Directory``."""
    path = java("java.io.File")(java_text(java, str(folder.absolute()))).toPath()
    return java("org.apache.lucene.store.FSDirectory").open(path)
