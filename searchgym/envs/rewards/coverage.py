"""Reward ``coverage``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.envs.reward import Reward
from searchgym.records import Question
from searchgym.scoring.judges.rubric import coverage, wanted_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Reward):
    """Rewards the F1 between the parts of the answer and all answers that the question requires."""

    @override
    def of_answer(self, text: str, question: Question) -> float:
        return coverage(text, wanted_of(question))
