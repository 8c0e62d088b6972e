"""Reward ``em``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.envs.reward import Reward
from searchgym.scoring import exact_match


@dataclass(frozen=True, slots=True, kw_only=True)
class Em(Reward):
    """Rewards exact match: 1 if the answer equals a gold answer or alias after normalisation, else 0."""

    score = staticmethod(exact_match)
