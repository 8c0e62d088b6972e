"""A retriever that hides the source page of each question, and the pages of evaluation questions from all."""

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
    """Page that is hidden from a question: all passages with its title, and copies of its passage."""

    ids: frozenset[str] = frozenset()
    """Ids of the hidden passages."""
    title: str = ""
    """Title of the page, normalised by `title_key`; empty if it has none."""

    def has(self, passage: Passage) -> bool:
        """Returns whether a passage belongs to the page."""
        return passage.id in self.ids or (self.title != "" and title_key(passage.title) == self.title)


class HidingRetriever(Wrapper):
    """Retriever that removes pages from the hits of another retriever and fills up with the next hits.

    Each query requests one extra hit, and twice as many if too few remain, so that the hits do not depend on the other
    queries of a batch.

    Args:
        inner: Retriever with one corpus for all questions.
        hidden: Question id to the page hidden from that question.
        names: Names of pages hidden from all questions, normalised by `norm`: those of evaluation questions.

    Raises:
        UsageError: The hits of `inner` already depend on the question.
    """

    def __init__(self, inner: Retriever, hidden: dict[str, Hidden], names: frozenset[str] = frozenset()) -> None:
        super().__init__(inner)
        self.hidden, self.names = hidden, names

    def over(self, inner: Retriever) -> HidingRetriever:
        """Returns a retriever that removes the same pages from another retriever's hits."""
        return HidingRetriever(inner, self.hidden, self.names)

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first, without pages hidden from its question.

        Raises:
            RetrieverError: A question is unknown, so its hidden page is unknown too.
        """
        if unknown := [id for id in question_ids if id not in self.hidden]:
            raise RetrieverError(f"question {unknown[0]!r} is not in this environment, so its hidden page is unknown")
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
    """Returns a retriever that hides pages as the questions require; the same retriever if there is nothing to hide.

    Args:
        retriever: The environment's retriever.
        questions: Questions; `Question.metadata` has the key ``hidden`` if the source is hidden.
        held_out: Files of evaluation questions, whose pages are hidden from all questions.

    Raises:
        UsageError: The hits already depend on the question, or `hidden` is malformed.
    """
    hidden = {question.id: hidden_from(question) for question in questions}
    if not held_out and not any(page.ids or page.title for page in hidden.values()):
        return retriever
    if not isinstance(retriever, Retriever):
        raise UsageError("hidden sources need one corpus for all questions: leave out distractors, or source: hidden")
    apart = held_out_by((), held_out)
    return HidingRetriever(retriever, hidden, apart.names if apart else frozenset())


def hidden_from(question: Question) -> Hidden:
    """Returns the page hidden from a question, read from its metadata; an empty one if nothing is hidden.

    Raises:
        UsageError: The metadata is malformed.
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
