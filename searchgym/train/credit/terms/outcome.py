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
    """Rewards the last call of each of an episode's sequences with the episode's reward; other calls get 0.

    In a team every call is a separate sequence, so every call gets the reward; in a monolithic agent only the last call
    does.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    split: bool = False
    """If true, the reward is divided equally among the calls that the term rewards (UnityMAS-O, arXiv 2605.26646)."""

    @override
    def differs(self, penalties: Mapping[str, float]) -> bool:
        """Returns True if calls may get different rewards; equal parts depend on an episode's length."""
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
