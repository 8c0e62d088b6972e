"""Method ``policy``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.train.recipe.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient(Method):
    """Trains by reinforcement learning (PPO, GRPO and others); see ``credit``, ``advantage`` and ``loss``."""

    compares: ClassVar = True
