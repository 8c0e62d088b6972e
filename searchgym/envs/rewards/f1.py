"""Reward ``f1``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.records import Question
from searchgym.scoring import f1_score


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(Reward):
    """Pays token F1 with the best gold answer or alias (HotpotQA's yes/no rule)."""

    def of_answer(self, text: str, question: Question) -> float:
        """See `Reward.of_answer`."""
        return f1_score(text, question.golds)
