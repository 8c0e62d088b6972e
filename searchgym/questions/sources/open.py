"""Question source ``open``: tasks over a generated world with long or multiple answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge
from typing_extensions import override

from searchgym.questions.question_source import QuestionContext, QuestionSource
from searchgym.questions.sources.world import folder_of
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestions(QuestionSource):
    """Reports, or questions with several answers, over a generated world; equal options give equal tasks."""

    asks: Literal["report", "several"]
    """``report``: a short report that states given facts. ``several``: a question with several required answers."""
    n: Annotated[int, Ge(1)] = 100
    """Number of tasks."""
    seed: int = 0
    facts: Annotated[int, Ge(2)] = 4
    """Number of facts (``report`` only), at least 2; the last one comes from another page."""
    world: WorldSpec = field(default_factory=WorldSpec)
    """World to ask about."""

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.questions.worlds.open_tasks import open_tasks

        return open_tasks(self.world, self.asks, n=self.n, seed=self.seed, facts=self.facts)

    @override
    def corpus(self) -> Path:
        return folder_of(self.world) / "corpus.jsonl"

    @property
    @override
    def title(self) -> str:
        return f"SearchGym world, {self.world.level}"

    @property
    @override
    def split_name(self) -> str:
        return self.world.split

    @property
    @override
    def count(self) -> int:
        return self.n

    @override
    def world_spec(self) -> WorldSpec:
        return self.world
