"""Question source ``world``: questions and pages of a generated world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from searchgym.corpora.folders import home
from searchgym.questions.question_source import QuestionContext, QuestionSource
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldQuestions(WorldSpec, QuestionSource):
    """A generated world with its pages, built at first use; equal options give equal questions."""

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.corpora.questions import read_questions

        return tuple(read_questions(folder_of(self) / "questions.jsonl"))

    @override
    def corpus(self) -> Path:
        return folder_of(self) / "corpus.jsonl"

    @property
    @override
    def title(self) -> str:
        return f"SearchGym world, {self.level}"

    @override
    def world_spec(self) -> WorldSpec:
        return self


def folder_of(world: WorldSpec) -> Path:
    """Returns the folder of a world, which is built at first use."""
    from searchgym.questions.worlds.storage import cached_world

    return cached_world(world, home() / "worlds")
