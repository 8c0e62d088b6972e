"""Proposer ``path``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Interval
from typing_extensions import override

from searchgym.train.selfplay.arms import Arm, ArmPolicy, Floats, hardness, signal
from searchgym.train.selfplay.proposer import WalkingProposer


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningProposer(WalkingProposer):
    """Walks the graph behind the environment's corpus, and learns which kinds of questions help training.

    Source: SSP, arXiv 2510.18821, whose proposer is a language model with these rewards; the walks are ours. The policy
    is `ArmPolicy`.
    """

    reward: Literal["signal", "hard"] = "signal"
    """Reward of a question with pass rate p: ``signal`` is 4 p (1 - p), ``hard`` is 1 - p."""
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.9
    """Factor per step on the weights of earlier steps, because the solver changes."""
    prior: Annotated[float, Ge(0)] = 2.0
    """Number of virtual questions by which an arm's value is shrunk towards its shape's value, and that towards 0."""
    temperature: Annotated[float, Gt(0)] = 0.25
    """Minimum temperature of the softmax over mean advantages."""
    min_entropy: Annotated[float, Interval(ge=0, le=1)] = 0.7
    """Minimum entropy of the policy, as a share of that of uniform choice."""

    @override
    def policy(self, arms: Sequence[Arm]) -> ArmPolicy:
        learning = {name: getattr(self, name) for name in ("decay", "prior", "temperature", "min_entropy")}
        return ArmPolicy(arms, self.arms, self.max_named, **learning)

    @override
    def rewards(self, rates: Sequence[float], attempts: Sequence[int]) -> Floats | None:
        with np.errstate(invalid="ignore", divide="ignore"):
            return hardness(rates) if self.reward == "hard" else signal(rates, attempts)
