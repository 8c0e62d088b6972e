"""Retrievers: BM25, Lucene and FAISS over index folders, wrappers of retrievers, and clients of servers and tools."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.retrieval.cards import PartCard, RetrieverCard, Sources, find_retriever
    from searchgym.retrieval.index.build import build_index
    from searchgym.retrieval.index.convert import convert_index
    from searchgym.retrieval.index.distractors import DistractorRetriever
    from searchgym.retrieval.index.index import build_in_memory, inspect_index, load_index
    from searchgym.retrieval.kinds.cache import CacheRetriever
    from searchgym.retrieval.kinds.http import HttpRetriever
    from searchgym.retrieval.kinds.hybrid import HybridRetriever
    from searchgym.retrieval.kinds.noise import NoiseRetriever
    from searchgym.retrieval.kinds.recorded import RecordedRetriever
    from searchgym.retrieval.kinds.rerank import RerankRetriever
    from searchgym.retrieval.kinds.tool import ToolRetriever
    from searchgym.retrieval.retriever import (
        AnyRetriever,
        CorpusRetriever,
        NullRetriever,
        QuestionRetriever,
        Retriever,
        check_request,
        retrieve,
    )

__all__ = [
    "AnyRetriever",
    "CacheRetriever",
    "CorpusRetriever",
    "DistractorRetriever",
    "HttpRetriever",
    "HybridRetriever",
    "NoiseRetriever",
    "NullRetriever",
    "PartCard",
    "QuestionRetriever",
    "RecordedRetriever",
    "RerankRetriever",
    "Retriever",
    "RetrieverCard",
    "Sources",
    "ToolRetriever",
    "build_in_memory",
    "build_index",
    "check_request",
    "convert_index",
    "find_retriever",
    "inspect_index",
    "load_index",
    "retrieve",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "cards": "PartCard RetrieverCard Sources find_retriever",
        "index.convert": "convert_index",
        "index.build": "build_index",
        "index.distractors": "DistractorRetriever",
        "index.index": "build_in_memory inspect_index load_index",
        "kinds.http": "HttpRetriever",
        "kinds.recorded": "RecordedRetriever",
        "kinds.tool": "ToolRetriever",
        "retriever": "AnyRetriever CorpusRetriever NullRetriever QuestionRetriever Retriever check_request retrieve",
        "kinds.cache": "CacheRetriever",
        "kinds.hybrid": "HybridRetriever",
        "kinds.noise": "NoiseRetriever",
        "kinds.rerank": "RerankRetriever",
    },
)
