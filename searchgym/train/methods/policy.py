"""Method ``policy``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.train.recipe.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient(Method):
    """Reinforcement learning: PPO and the GRPO family, by the sections ``credit``, ``advantage`` and ``loss``."""

    compares: ClassVar = True
