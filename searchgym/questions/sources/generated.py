"""Question source ``generated``: questions generated from the user's corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from typing_extensions import override

from searchgym.corpora.folders import home
from searchgym.questions.question_source import CorpusPages, QuestionContext, QuestionSource
from searchgym.questions.spec import GeneratedSpec
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedQuestions(GeneratedSpec, QuestionSource):
    """Questions generated from the user's corpus at first use; equal options and corpora give equal questions."""

    dataset: ClassVar = "questions generated from your corpus"
    of_corpus: ClassVar = "asks about"

    split: Literal["train", "validation", "test", "all"] = "train"
    """Split to use; no gold page is in two splits."""
    hold_out: list[str] = field(default_factory=list)
    """Question files of an evaluation, whose gold pages and answers are left out."""

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.questions.storage import cached_set, read_split

        home_folder = home() / "questions"
        folder = cached_set(context.corpus(), self, home_folder, context.corpus_name, self.hold_out, context.top_k)
        return read_split(folder, self.split)

    @override
    def corpus_pages(self) -> CorpusPages:
        return CorpusPages(pack=self.pack, shapes=self.shapes, split=self.split, hold_out=self.hold_out)
