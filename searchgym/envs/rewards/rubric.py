"""Reward ``rubric``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.envs.reward import Reward
from searchgym.records import Question
from searchgym.scoring.judges.judge import default_judge
from searchgym.scoring.judges.rubric import rubric_score


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricByRules(Reward):
    """Rewards the share of the question's rubric that the answer passes by rules; see `scoring.judges.rubric`."""

    @override
    def of_answer(self, text: str, question: Question) -> float:
        return rubric_score(default_judge().open({}), question, text)
