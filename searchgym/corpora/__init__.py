"""Readers and writers of corpora and questions."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.corpora.documents import chunk_passages, convert_documents, open_corpus
    from searchgym.corpora.download import get_corpus
    from searchgym.corpora.passages import corpus_sha256, read_passages, write_corpus
    from searchgym.corpora.questions import read_aliases, read_queries, read_questions, write_questions

__all__ = [
    "chunk_passages",
    "convert_documents",
    "corpus_sha256",
    "get_corpus",
    "open_corpus",
    "read_aliases",
    "read_passages",
    "read_queries",
    "read_questions",
    "write_corpus",
    "write_questions",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "documents": "chunk_passages convert_documents open_corpus",
        "download": "get_corpus",
        "passages": "corpus_sha256 read_passages write_corpus",
        "questions": "read_aliases read_queries read_questions write_questions",
    },
)
