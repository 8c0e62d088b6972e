"""What a retriever is, as plain data: for run files, and for the clients of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from searchgym.corpora.retrieval.retriever import AnyRetriever, CorpusRetriever


def identify(retriever: AnyRetriever) -> dict[str, Any]:
    """Returns what a retriever says of itself (``identity()``), its class, and the corpus that it searches.

    Two retrievers of the same identity give the same hits, as far as they can know: a user's own class, or a tool,
    says no more than its name.
    """
    own: Callable[[], dict[str, Any]] | None = getattr(retriever, "identity", None)
    found: dict[str, Any] = {"retriever": type(retriever).__name__}
    if own is not None:
        found |= own()
    # `passages` alone tells: a look at all members, as isinstance takes it, would have a server asked for one.
    if callable(getattr(retriever, "passages", None)):
        assert isinstance(retriever, CorpusRetriever)
        found |= {"passages": len(retriever), "corpus": retriever.corpus_sha256}
    return found
