"""Credit term ``costs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs(Term):
    """Deducts the cost of an episode's rounds and searches from each of its calls, except prefix answers.

    The reward is ``-turn min(rounds - 1, 3) / 3 - search min(searches, 3) / 3``. The number of rounds is the workflow's
    note ``rounds``, or the number of turns if there is no such note.

    Source: JADE, arXiv 2601.21916, its alpha and beta.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    turn: Annotated[float, Ge(0)] = 0.0
    """Reward deducted for three or more rounds beyond the first, proportionally less for fewer."""
    search: Annotated[float, Ge(0)] = 0.0
    """Reward deducted for three or more searches, proportionally less for fewer."""

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rounds = episode.notes.get("rounds", float(episode.turns))
        turns, searches = min(max(rounds - 1, 0), 3) / 3, min(len(episode.searches), 3) / 3
        cost = 0.0 - self.turn * turns - self.search * searches
        return [0.0 if call.prefix else cost for call in episode.calls]
