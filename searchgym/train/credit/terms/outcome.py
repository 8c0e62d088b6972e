"""Credit term ``outcome``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.term import CreditContext, Rows, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Term):
    """Gives the episode's reward to the last call of each of its sequences, and 0 to the others.

    In a team every call is its own sequence, so every call gets the reward; of a monolithic agent only the last call.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    split: bool = False
    """If true, each call that the term rewards gets an equal part of the reward (UnityMAS-O, arXiv 2605.26646)."""

    @override
    def differs(self, penalties: Mapping[str, float]) -> bool:
        """Equal parts differ between episodes of different length."""
        return self.split or Term.differs(self, penalties)

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        rows = [outcome_rewards(episode) for episode in group]
        if not self.split:
            return rows
        counts = [
            sum(
                value != 0 and (self.roles is None or call.role in self.roles)
                for value, call in zip(row, episode.calls, strict=True)
            )
            for row, episode in zip(rows, group, strict=True)
        ]
        return [[value / max(count, 1) for value in row] for row, count in zip(rows, counts, strict=True)]
