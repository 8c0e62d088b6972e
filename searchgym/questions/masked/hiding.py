"""A retriever that never shows a question its own source page, nor anybody the pages of evaluation questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from searchgym.errors import RetrieverError, UsageError
from searchgym.questions.source import held_out_by
from searchgym.records import Hit, Passage, Question, title_key
from searchgym.retrieval.retriever import AnyRetriever, Retriever
from searchgym.retrieval.wrapper import Wrapper
from searchgym.text import base_title, norm


@dataclass(frozen=True, slots=True)
class Hidden:
    """The page that a question must not find: all passages of its title, and copies of its passage."""

    ids: frozenset[str] = frozenset()
    """Ids of these passages."""
    title: str = ""
    """Title of the page, as `title_key` writes it; empty if it has none."""

    def has(self, passage: Passage) -> bool:
        """Returns whether a passage is a part of the page."""
        return passage.id in self.ids or (self.title != "" and title_key(passage.title) == self.title)


class HidingRetriever(Wrapper):
    """Retriever that leaves pages out of the hits of another one, and fills up with the next ones.

    A query asks for one hit more than is wanted, and for twice as many where too few are left, so that the hits do not
    depend on the other queries of a batch.

    Args:
        inner: Retriever with one corpus for all questions.
        hidden: Question id to the page that it must not find.
        names: Names of pages, as `norm` writes them, that no question finds: those of evaluation questions.

    Raises:
        UsageError: The hits of `inner` depend on the question already.
    """

    def __init__(self, inner: Retriever, hidden: dict[str, Hidden], names: frozenset[str] = frozenset()) -> None:
        super().__init__(inner)
        self.hidden, self.names = hidden, names

    def over(self, inner: Retriever) -> HidingRetriever:
        """Returns a retriever that leaves the same pages out of another retriever's hits."""
        return HidingRetriever(inner, self.hidden, self.names)

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first, none of a page that is hidden from its question.

        Raises:
            RetrieverError: A question is unknown, so that it is not known what to hide.
        """
        if unknown := [id for id in question_ids if id not in self.hidden]:
            raise RetrieverError(f"question {unknown[0]!r} is none of the environment's: what to hide is not known")
        visible: list[list[Hit]] = [[] for _ in queries]
        left, most = list(range(len(queries))), k + 1
        while left:
            again = []
            for number, hits in zip(left, self.inner[0].search([queries[n] for n in left], most), strict=True):
                hidden = self.hidden[question_ids[number]]
                visible[number] = [
                    hit
                    for hit in hits
                    if not hidden.has(hit.passage)
                    and (not self.names or norm(base_title(title_key(hit.passage.title))) not in self.names)
                ][:k]
                if len(visible[number]) < k and len(hits) == most:
                    again.append(number)
            left, most = again, 2 * most
        return visible

    @override
    def identity(self) -> dict[str, Any]:
        return super().identity() | {"hides": "sources", "apart": len(self.names)}


def hiding(retriever: AnyRetriever, questions: Iterable[Question], held_out: Sequence[str] = ()) -> AnyRetriever:
    """Returns a retriever that hides the sources of questions which ask for it; another one is returned as it is.

    Args:
        retriever: The environment's retriever.
        questions: Questions; `Question.metadata` has `hidden` where the source is hidden.
        held_out: Files of evaluation questions, whose pages are hidden from all.

    Raises:
        UsageError: The hits depend on the question already, or `hidden` has another form.
    """
    hidden = {question.id: hidden_from(question) for question in questions}
    if not held_out and not any(page.ids or page.title for page in hidden.values()):
        return retriever
    if not isinstance(retriever, Retriever):
        raise UsageError("hidden sources need one corpus for all questions: leave out distractors, or source: hidden")
    apart = held_out_by((), held_out)
    return HidingRetriever(retriever, hidden, apart.names if apart else frozenset())


def hidden_from(question: Question) -> Hidden:
    """Returns the page that a question must not find, as its metadata says; an empty one if it may find all.

    Raises:
        UsageError: The metadata has another form.
    """
    data = question.metadata.get("hidden")
    if data is None:
        return Hidden()
    ids, title = (data.get("ids"), data.get("title")) if isinstance(data, dict) else (None, None)
    if not isinstance(title, str) or not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise UsageError(
            f"question {question.id!r}: hidden must be {{'ids': [...], 'title': ...}} in its metadata, got {data!r:.80}"
        )
    return Hidden(frozenset(ids), title_key(title))
