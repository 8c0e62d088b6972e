"""The base class of retrievers that wrap other retrievers."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from typing_extensions import override

from searchgym.corpora.store.reader import PassageStore
from searchgym.errors import UsageError
from searchgym.named import check_call
from searchgym.records import Hit, Passage
from searchgym.retrieval.retriever import (
    AnyRetriever,
    CorpusRetriever,
    QuestionRetriever,
    Retriever,
    at_step,
    corpus_of,
    identify,
)


class Wrapper:
    """Base class of retrievers that wrap other retrievers and take over their properties.

    A wrapper is a `CorpusRetriever` if one of the wrapped retrievers is; only then does it have `passages` and
    `passage`. Copying it returns the same object.

    Args:
        *inner: Wrapped retrievers, one or more.

    Raises:
        UsageError: A wrapped retriever has no ``search``, because its hits depend on the question, or one that takes
            other arguments.
    """

    passages: Callable[[], Iterator[Passage]]
    """Yields all passages in corpus order."""
    passage: Callable[[int], Passage]
    """Returns the passage at a position, from 0 to len - 1."""

    def __init__(self, *inner: Retriever) -> None:
        for each in inner:
            if not isinstance(each, Retriever):
                raise UsageError(f"{type(self).__name__} wraps retrievers with search(), got {type(each).__name__}")
            check_retriever(each)
        self.inner = inner
        self.calls_at_once = min(int(getattr(each, "calls_at_once", 1)) for each in inner)
        self.queries_at_once = min(int(getattr(each, "queries_at_once", sys.maxsize)) for each in inner)
        again = [bool(getattr(each, "tries_again", False)) for each in inner]
        local = [bool(getattr(each, "in_process", False)) for each in inner]
        self.in_process = all(local)
        self.tries_again = any(again) and all(map(operator.or_, again, local))  # local retrievers need no retries
        self.changes_by_step = any(getattr(each, "changes_by_step", False) for each in inner)
        """Whether the hits of a query can change from one training step to the next."""
        if (corpus := self._corpus) is not None:
            self.passages = corpus.passages
            self.passage = corpus.passage

    @property
    def _corpus(self) -> CorpusRetriever | None:
        """First wrapped retriever whose corpus is on this machine; None without one."""
        return next((corpus for corpus in map(corpus_of, self.inner) if corpus is not None), None)

    @property
    def corpus_sha256(self) -> str | None:
        """sha256 of the corpus; None if the wrapped retrievers do not know it or differ."""
        sources = [self._corpus] if self._corpus is not None else self.inner
        sums = {getattr(each, "corpus_sha256", None) for each in sources}
        return sums.pop() if len(sums) == 1 else None

    def __len__(self) -> int:
        """Returns the number of passages.

        Raises:
            TypeError: No wrapped retriever has its corpus on this machine.
        """
        if self._corpus is None:
            raise TypeError(f"{type(self).__name__} has no corpus on this machine, so it has no len()")
        return len(self._corpus)

    def __bool__(self) -> bool:
        """Returns True, since Python would otherwise call ``len``, which may raise or be 0."""
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, apart from the corpus."""
        return {"of": [identify(each) for each in self.inner]}

    def at_step(self, step: int | None, steps: int) -> None:
        """Sets the training step of the wrapped retrievers; see the function `at_step`."""
        for retriever in self.inner:
            at_step(retriever, step, steps)


class WithCorpus(Wrapper):
    """Retriever whose passages are in a separate store, because it does not give access to them itself.

    Args:
        inner: Wrapped retriever.
        store: Passages that the retriever searches.
        corpus_sha256: sha256 of the corpus.
    """

    def __init__(self, inner: Retriever, store: PassageStore, corpus_sha256: str | None) -> None:
        super().__init__(inner)
        self.store, self.sha256 = store, corpus_sha256
        self.passages, self.passage = store.__iter__, store.__getitem__

    @property
    @override
    def corpus_sha256(self) -> str | None:
        return self.sha256

    @override
    def __len__(self) -> int:
        return len(self.store)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the hits of the wrapped retriever."""
        return self.inner[0].search(queries, k)


def check_retriever(retriever: AnyRetriever) -> None:
    """Checks that a user's retriever can be searched as `retrieve` does it.

    Raises:
        UsageError: Its `search` or `search_for` takes other arguments.
    """
    name = type(retriever).__name__
    if isinstance(retriever, QuestionRetriever):
        check_call(f"{name}.search_for", retriever.search_for, "question_ids", "queries", "k")
    else:
        check_call(f"{name}.search", retriever.search, "queries", "k")
