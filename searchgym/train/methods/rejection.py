"""Method ``rejection``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.recipe.method import Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(Likelihood):
    """Trains by maximum likelihood on the model's successful episodes (rejection sampling)."""

    min_reward: float = 1.0
    """Minimum reward of the episodes to learn from."""

    @property
    @override
    def least_reward(self) -> float:
        return self.min_reward
