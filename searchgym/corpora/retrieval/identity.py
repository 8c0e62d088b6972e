"""Describes a retriever as plain data, for run files and for the clients of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from searchgym.corpora.retrieval.retriever import AnyRetriever


def identify(retriever: AnyRetriever) -> dict[str, Any]:
    """Returns a retriever's class name, its settings (``identity()``) and the corpus that it searches.

    Two retrievers with the same identity give the same hits if their settings tell everything: a user's class or a
    tool gives only its name.
    """
    settings: Callable[[], dict[str, Any]] | None = getattr(retriever, "identity", None)
    identity: dict[str, Any] = {"retriever": type(retriever).__name__}
    if settings is not None:
        identity |= settings()
    # Only `passages` is checked: isinstance reads every member, and `corpus_sha256` of a client would ask its server.
    if callable(getattr(retriever, "passages", None)):
        corpus: Any = retriever  # a `CorpusRetriever`, or one whose hits depend on the question
        identity |= {"passages": len(corpus), "corpus": corpus.corpus_sha256}
    return identity
