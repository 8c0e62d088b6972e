"""Reward ``recall``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.envs.reward import Reward
from searchgym.records import Question
from searchgym.scoring import span_recall


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Reward):
    """Rewards span recall with a guard on length (see `scoring.span_recall`), the maximum over the gold answers."""

    @override
    def of_answer(self, text: str, question: Question) -> float:
        return max(span_recall(text, gold) for gold in question.golds)
