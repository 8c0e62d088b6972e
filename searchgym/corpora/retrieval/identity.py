"""What a retriever is, as plain data: for run files, and for the clients of a server."""

from __future__ import annotations

from typing import Any

from searchgym.corpora.retrieval.retriever import AnyRetriever, CorpusRetriever


def identify(retriever: AnyRetriever) -> dict[str, Any]:
    """Returns what a retriever says of itself (``identity()``), its class, and the corpus that it searches.

    Two retrievers of the same identity give the same hits, as far as they can know: a user's own class, or a tool,
    says no more than its name.
    """
    own = getattr(retriever, "identity", None)
    said = dict(own()) if callable(own) else {}
    found: dict[str, Any] = {"retriever": type(retriever).__name__} | said
    # `passages` alone tells: a look at all members, as isinstance takes it, would have a server asked for one.
    if callable(getattr(retriever, "passages", None)):
        assert isinstance(retriever, CorpusRetriever)
        found |= {"passages": len(retriever), "corpus": retriever.corpus_sha256}
    return found
