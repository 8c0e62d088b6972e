"""Proposer ``uniform``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.selfplay.arms import Arm, ArmPolicy
from searchgym.train.selfplay.proposer import WalkingProposer


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProposer(WalkingProposer):
    """Walks the graph behind the environment's corpus, and chooses kinds of questions uniformly."""

    @override
    def policy(self, arms: Sequence[Arm]) -> ArmPolicy:
        return ArmPolicy(arms, self.arms, self.max_named)
