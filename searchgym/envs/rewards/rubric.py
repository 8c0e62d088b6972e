"""Reward ``rubric``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.judging.judge import default_judge
from searchgym.judging.rubric import rubric_score
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricByRules(Reward):
    """Pays the share of the question's rubric that the answer passes by rules; see `searchgym.judging.rubric`."""

    def of_answer(self, text: str, question: Question) -> float:
        """See `Reward.of_answer`."""
        return rubric_score(default_judge().open({}), question, text)
