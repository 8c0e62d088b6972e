"""Builds the retriever that a card describes, with the retrievers that it wraps."""

from __future__ import annotations

import os
from collections.abc import Callable

from searchgym.corpora.retrieval.cards import (
    TOKEN,
    BM25Card,
    CacheCard,
    DenseCard,
    HttpCard,
    HybridCard,
    LuceneCard,
    NoiseCard,
    PartCard,
    RecordedCard,
    RerankCard,
    RetrieverCard,
    SimulatedCard,
    ToolCard,
)
from searchgym.corpora.retrieval.retriever import CorpusRetriever, Retriever
from searchgym.errors import UsageError


def compose(card: RetrieverCard, part: Callable[[PartCard], CorpusRetriever]) -> Retriever:
    """Returns the retriever of a card, with the retrievers that it wraps.

    Args:
        card: Card of any kind.
        part: Returns the retriever over the part built for a card.
    """
    if isinstance(card, (BM25Card, LuceneCard, DenseCard)):
        return part(card)
    if isinstance(card, HybridCard):
        from searchgym.corpora.retrieval.wrappers.fusion import HybridRetriever

        return HybridRetriever([compose(inner, part) for inner in card.of], card.depth, card.constant)
    if isinstance(card, RerankCard):
        from searchgym.corpora.retrieval.wrappers.rerank import RerankRetriever, scorer_of

        return RerankRetriever(compose(card.of, part), scorer_of(card), card.first)
    if isinstance(card, NoiseCard):
        from searchgym.corpora.retrieval.wrappers.noise import NoiseRetriever

        return NoiseRetriever(
            compose(card.of, part),
            start=card.start,
            end=card.end,
            base=card.base,
            steps=card.steps,
            seed=card.seed,
            mixed_in=card.mixed_in,
        )
    if isinstance(card, CacheCard):
        from searchgym.corpora.retrieval.wrappers.cache import CacheRetriever

        return CacheRetriever(compose(card.of, part), card.size)
    if isinstance(card, SimulatedCard):
        raise UsageError(
            "a simulated engine writes pages for a question: it is the retriever of an environment, and neither "
            "served nor part of another retriever"
        )
    return _elsewhere(card)


def open_outside(card: RetrieverCard) -> Retriever:
    """Returns the retriever of a card that needs no corpus on this machine.

    Raises:
        UsageError: The card needs a corpus.
    """
    return compose(card, _no_part)


def _no_part(card: PartCard) -> CorpusRetriever:
    raise UsageError(f"the retriever card {card.name or card.kind!r} searches a corpus: give one")


def _elsewhere(card: RecordedCard | HttpCard | ToolCard) -> Retriever:
    """Returns the retriever of a card that names a server, a function or a record."""
    if isinstance(card, HttpCard):
        from searchgym.corpora.retrieval.remote.client import HttpRetriever

        token = os.environ.get(card.token_env)
        if token is None and card.token_env != TOKEN:
            raise UsageError(f"{card.url}: its card takes the token from {card.token_env}, which is not set")
        return HttpRetriever(card.url, card.schema, connections=card.connections, deadline=card.deadline, token=token)
    if isinstance(card, RecordedCard):
        from searchgym.corpora.retrieval.remote.recorded import RecordedRetriever

        return RecordedRetriever.of_run(card.episodes)
    from searchgym.corpora.retrieval.remote.tool import ToolRetriever

    return ToolRetriever.of_name(card.function, calls=card.calls)
