"""Reward ``rubric``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.records import Question
from searchgym.scoring.judges.judge import default_judge
from searchgym.scoring.judges.rubric import rubric_score


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricByRules(Reward):
    """Pays the share of the question's rubric that the answer passes by rules; see `scoring.judges.rubric`."""

    def of_answer(self, text: str, question: Question) -> float:
        """See `Reward.of_answer`."""
        return rubric_score(default_judge().open({}), question, text)
