"""The distractor setting: each question searches only its own paragraphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from searchgym.errors import RetrieverError
from searchgym.records import Hit, Passage, Question
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import AnyRetriever, corpus_of


class DistractorRetriever:
    """Retriever of the official distractor setting of HotpotQA and 2Wiki: a question searches only its own paragraphs.

    One BM25 index holds the paragraphs of all questions, so term statistics are those of the whole set; a query is
    scored only against the paragraphs of its question.

    Args:
        questions: Questions with `paragraphs`.

    Raises:
        RetrieverError: A question has no paragraphs of its own.
    """

    in_process = True

    def __init__(self, questions: Iterable[Question]) -> None:
        positions: dict[tuple[str, str], int] = {}
        by_question: dict[str, list[int]] = {}
        for question in questions:
            if not question.paragraphs:
                raise RetrieverError(
                    f"question {question.id!r} has no paragraphs of its own: distractors=True needs a question file "
                    "with contexts (HotpotQA, 2WikiMultihopQA or MuSiQue format)"
                )
            pages = ((p.title, p.text) for p in question.paragraphs)
            by_question[question.id] = [positions.setdefault(page, len(positions)) for page in pages]
        self._subsets: Mapping[str, np.ndarray] = {
            id: np.unique(np.array(subset, np.int64)) for id, subset in by_question.items()
        }
        passages = (Passage(str(n), title, text) for (title, text), n in positions.items())
        self.index = build_in_memory(passages)
        """Index of the paragraphs of all questions."""

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first, among the paragraphs of the query's question."""
        return self.index.search_within(queries, k, [self._subsets[id] for id in question_ids])


def passages_of(retriever: AnyRetriever) -> Iterable[Passage] | None:
    """Returns the passages that a retriever searches, None if they are not on this machine."""
    corpus = corpus_of(retriever.index if isinstance(retriever, DistractorRetriever) else retriever)
    return None if corpus is None else corpus.passages()
