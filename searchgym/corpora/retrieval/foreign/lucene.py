"""Lucene indexes that pyserini made, searched where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from searchgym.corpora.files import FilePath
from searchgym.corpora.retrieval.cards import LuceneCard, PartCard, RetrieverCard, find_retriever
from searchgym.corpora.retrieval.index.index import over_corpus
from searchgym.corpora.retrieval.lucene.backend import LuceneRetriever
from searchgym.corpora.retrieval.retriever import CorpusRetriever
from searchgym.corpora.retrieval.wrappers.compose import compose
from searchgym.corpora.store import PassageStore
from searchgym.errors import DataMissingError, UsageError


def is_lucene(folder: FilePath) -> bool:
    """Returns whether a folder holds a Lucene index."""
    return any(Path(folder).glob("segments_*"))


def open_lucene(
    folder: FilePath,
    passages: PassageStore | None = None,
    card: str | dict[str, Any] | RetrieverCard | None = None,
) -> CorpusRetriever:
    """Opens an index that pyserini made, with its default analysis.

    Args:
        folder: Of ``python -m pyserini.index.lucene --collection JsonCollection --index FOLDER ...``.
        passages: The indexed passages; may be left out if the index stores documents (``--storeRaw``).
        card: How to search: one of kind ``lucene`` or one that stands on such; pyserini's defaults where None.

    Raises:
        DataMissingError: There is no Lucene index.
        UsageError: The index stores no documents and no passages are given; the card asks for more than Lucene;
            pyserini or a JDK is missing.
        IndexMismatchError: The index is damaged, or not of these passages.
    """
    folder = Path(folder)
    if not is_lucene(folder):
        raise DataMissingError("holds no Lucene index (no segments_N)", folder)

    def part(card: PartCard) -> CorpusRetriever:
        if not isinstance(card, LuceneCard):
            raise UsageError(f"{folder} is an index of Lucene alone: it has no part of kind {card.kind!r}")
        return LuceneRetriever(folder, card, passages)

    return over_corpus(compose(LuceneCard() if card is None else find_retriever(card), part), folder)
