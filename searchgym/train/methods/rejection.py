"""Method ``rejection``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.recipe.method import Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(Likelihood):
    """Maximum likelihood on the model's own successful episodes."""

    min_reward: float = 1.0
    """Reward that an episode needs in order to be learnt from."""

    @property
    @override
    def least_reward(self) -> float:
        return self.min_reward
