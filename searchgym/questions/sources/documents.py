"""Question source ``documents``: generated long documents, and questions that need three of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from searchgym.corpora.folders import home
from searchgym.questions.documents.spec import DocumentsSpec
from searchgym.questions.question_source import QuestionContext, QuestionSource
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentQuestions(DocumentsSpec, QuestionSource):
    """Generated documents of many pages with their questions, built at first use; equal options give equal text."""

    dataset: ClassVar = "SearchGym long documents"

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.corpora.questions import read_questions
        from searchgym.questions.documents.build import QUESTIONS

        return tuple(read_questions(self._folder() / QUESTIONS))

    @override
    def corpus(self) -> Path:
        from searchgym.questions.documents.build import CORPUS

        return self._folder() / CORPUS

    @property
    @override
    def count(self) -> int:
        return self.n

    def _folder(self) -> Path:
        """Returns the folder of the documents, which are built at first use."""
        from searchgym.questions.documents.build import cached_documents

        return cached_documents(self, home() / "documents")
