"""What retrievers have in common that stand on others."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

from searchgym.corpora.retrieval.identity import identify
from searchgym.corpora.retrieval.retriever import AnyRetriever, CorpusRetriever, Retriever
from searchgym.errors import UsageError
from searchgym.records import Passage


class Wrapper:
    """Stands on other retrievers: says of itself what they say. A copy is the retriever itself.

    It is a `CorpusRetriever` where one of them is: the members `passages` and `passage` are there only then.

    Args:
        *inner: What it stands on, one or more.

    Raises:
        UsageError: One of them has no ``search``: what it finds depends on the question.
    """

    passages: Callable[[], Iterator[Passage]]
    """Yields all passages in corpus order."""
    passage: Callable[[int], Passage]
    """Returns the passage at a position."""

    def __init__(self, *inner: Retriever) -> None:
        for one in inner:
            if not isinstance(one, Retriever):
                raise UsageError(f"{type(self).__name__} stands on retrievers with search(), got {type(one).__name__}")
        self.inner = inner
        self.calls_at_once = min(int(getattr(one, "calls_at_once", 1)) for one in inner)
        self.queries_at_once = min(int(getattr(one, "queries_at_once", sys.maxsize)) for one in inner)
        again = [bool(getattr(one, "tries_again", False)) for one in inner]
        local = [bool(getattr(one, "in_process", False)) for one in inner]
        self.in_process = all(local)
        self.tries_again = any(again) and all(map(operator.or_, again, local))  # what is here need not be asked again
        self.changes_by_step = any(getattr(one, "changes_by_step", False) for one in inner)
        """Whether the same query can find something else in another step of training."""
        if (corpus := self._corpus) is not None:
            self.passages = corpus.passages
            self.passage = corpus.passage

    @property
    def _corpus(self) -> CorpusRetriever | None:
        """The first retriever with a corpus at hand."""
        # `passages` alone tells: a look at all members, as isinstance takes it, would have a server asked for one.
        return next(
            (cast(CorpusRetriever, one) for one in self.inner if callable(getattr(one, "passages", None))), None
        )

    @property
    def corpus_sha256(self) -> str | None:
        """Identity of the corpus, where what it stands on knows it, and there is only one."""
        known = [self._corpus] if self._corpus is not None else self.inner
        found = {getattr(one, "corpus_sha256", None) for one in known}
        return found.pop() if len(found) == 1 else None

    def __len__(self) -> int:
        """Returns the number of passages.

        Raises:
            TypeError: There is no corpus at hand.
        """
        if self._corpus is None:
            raise TypeError(f"{type(self).__name__} stands on no corpus at hand: it has no len()")
        return len(self._corpus)

    def __bool__(self) -> bool:
        """Returns True, with or without a length."""
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        return {"of": [identify(one) for one in self.inner]}

    def at_step(self, step: int | None, steps: int) -> None:
        """Passes on which step of training comes next; see `at_step`."""
        for one in self.inner:
            at_step(one, step, steps)


def at_step(retriever: AnyRetriever, step: int | None, steps: int) -> None:
    """Tells a retriever, and what it stands on, what the next searches are for; most do not mind.

    Args:
        retriever: Any.
        step: 0-based step of training; None for validation.
        steps: Steps of the training in all.
    """
    told = getattr(retriever, "at_step", None)
    if told is not None:
        told(step, steps)
