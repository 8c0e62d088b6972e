"""Question source ``generated``: questions that are generated from a corpus of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from searchgym.corpora.folders import home
from searchgym.questions.question_source import CorpusPages, QuestionContext, QuestionSource
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedQuestions(QuestionSource):
    """Questions generated from the user's corpus at first use; equal options and corpora give equal questions."""

    dataset: ClassVar = "questions generated from your corpus"
    of_corpus: ClassVar = "asks about"

    n: int = 1000
    """Number of questions over all splits; fewer if the corpus has no more."""
    seed: int = 0
    split: Literal["train", "validation", "test", "all"] = "train"
    """Split to ask; no gold page is in two splits."""
    pack: str = "people-and-works"
    """Pack of patterns and wordings; what it does not know is asked by sentences with a hidden name."""
    shapes: list[str] = field(default_factory=list)
    """Shapes of questions, such as ``chain``; empty: all."""
    hold_out: list[str] = field(default_factory=list)
    """Question files whose gold pages and answers are left out: those of an evaluation."""

    def load(self, context: QuestionContext) -> Sequence[Question]:
        """See `QuestionSource.load`."""
        from searchgym.questions.generate import USUAL, Plan
        from searchgym.questions.storage import cached_set, read_split

        corpus = context.corpus()
        plan = Plan(n=self.n, seed=self.seed, top_k=context.top_k, shapes=tuple(self.shapes) or USUAL)
        folder = cached_set(corpus, self.pack, plan, home() / "questions", context.corpus_name, self.hold_out)
        return read_split(folder, self.split)

    def corpus_pages(self) -> CorpusPages:
        """See `QuestionSource.corpus_pages`."""
        return CorpusPages(pack=self.pack, shapes=self.shapes, split=self.split, hold_out=self.hold_out)
