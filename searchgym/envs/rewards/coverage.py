"""Reward ``coverage``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.judging.rubric import coverage, wanted_of
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Reward):
    """Pays the F1 between the parts of the answer and all answers that the question wants."""

    def of_answer(self, text: str, question: Question) -> float:
        """See `Reward.of_answer`."""
        return coverage(text, wanted_of(question))
