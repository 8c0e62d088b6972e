"""Question source ``masked``: hidden spans of the user's corpus, to be filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.corpora.folders import home
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.question_source import CorpusPages, QuestionContext, QuestionSource
from searchgym.records import Question
from searchgym.retrieval.retriever import AnyRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedQuestions(MaskedSpec, QuestionSource):
    """Masked spans of the user's corpus, generated at first use; equal options and corpora give equal tasks."""

    dataset: ClassVar = "masked spans of your corpus"
    of_corpus: ClassVar = "hides parts of"

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.questions.masked.generate import SearchLimits
        from searchgym.questions.masked.storage import cached_masks
        from searchgym.questions.storage import read_split

        limits = SearchLimits(top_k=context.top_k, words=context.words, searches=max(1, context.searches))
        return read_split(cached_masks(context.corpus(), self, limits, home() / "masked"), self.split)

    @override
    def around(self, retriever: AnyRetriever, questions: Sequence[Question]) -> AnyRetriever:
        # Pages that a task hides, or that are held out, never appear among the hits.
        from searchgym.questions.masked.hiding import hiding

        return hiding(retriever, questions, self.hold_out)

    @override
    def check_environment(self, context: QuestionContext) -> Iterable[str]:
        if context.browse:
            yield "browse would open the pages that searches hide: leave browse off"
        if context.retrievers:
            yield "retrievers would find the pages that searches hide: leave them out"

    @override
    def corpus_pages(self) -> CorpusPages:
        return CorpusPages(pack=self.pack, split=self.split, hold_out=self.hold_out)
