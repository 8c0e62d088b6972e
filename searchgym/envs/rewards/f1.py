"""Reward ``f1``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.scoring import f1_score


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(Reward):
    """Rewards token F1 with the best gold answer or alias (HotpotQA's yes/no rule)."""

    score = staticmethod(f1_score)
