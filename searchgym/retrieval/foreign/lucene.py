"""Opens Lucene indexes made by pyserini, which are searched in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from searchgym.corpora.files import FilePath
from searchgym.corpora.store import PassageStore
from searchgym.errors import DataMissingError, UsageError
from searchgym.retrieval.cards import PartCard, RetrieverCard, Sources, find_retriever
from searchgym.retrieval.index.index import over_corpus
from searchgym.retrieval.kinds.lucene import LuceneCard
from searchgym.retrieval.lucene.backend import LuceneRetriever
from searchgym.retrieval.retriever import CorpusRetriever


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
        UsageError: The index stores no documents and no passages are given; the card needs another part than Lucene's;
            or pyserini or a JDK is missing.
        IndexMismatchError: The index is damaged, or was made from other passages.
    """
    folder = Path(folder)
    if not is_lucene(folder):
        raise DataMissingError("holds no Lucene index (no segments_N)", folder)

    def part(card: PartCard) -> CorpusRetriever:
        if card.takes != "lucene":
            raise UsageError(f"{folder} is an index of Lucene alone: it has no part of kind {card.kind!r}")
        return LuceneRetriever(folder, cast(LuceneCard, card), passages)

    return over_corpus(Sources(part=part).open(LuceneCard() if card is None else find_retriever(card)), folder)
