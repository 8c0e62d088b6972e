"""Describes a retriever as plain data, for run files and for the clients of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from searchgym.retrieval.retriever import AnyRetriever, corpus_of


def identify(retriever: AnyRetriever) -> dict[str, Any]:
    """Returns a retriever's class name, its settings (``identity()``) and the corpus that it searches.

    Two retrievers with the same identity give the same hits if their settings tell everything: a user's class or a
    tool gives only its name.
    """
    settings: Callable[[], dict[str, Any]] | None = getattr(retriever, "identity", None)
    identity: dict[str, Any] = {"retriever": type(retriever).__name__}
    if settings is not None:
        identity |= settings()
    if (corpus := corpus_of(retriever)) is not None:
        identity |= {"passages": len(corpus), "corpus": corpus.corpus_sha256}
    return identity
