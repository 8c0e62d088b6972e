"""Credit term ``boundary``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.agents.teams.knowing import KNOWER
from searchgym.errors import DataError
from searchgym.records import Episode
from searchgym.text import norm
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Rows, Term

RIGHT: Final = 1.0
"""Score from which an answer counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary(Term):
    """Deducts the searches of right attempts that were not needed, by what the model knows without a search.

    The trial answers without pages of all attempts at a question (role ``knower``, as in the agent ``saas``) say what
    the model knows. If a share of at least `min_right` of them is right, no search was needed: a right attempt with q
    searches gets ``-price q``. If fewer are, but some attempt is right, it gets ``-price (q - q_min)``, where q_min is
    the least number of searches of a right attempt. If none is right, nobody is charged. A wrong attempt is never
    charged for searches. Right means a score of 1. A group without trial answers is refused with a DataError.

    Source: SAAS, arXiv 2605.29796, and its README: price 0.05, known if at least 2 of 4 attempts with search disabled
    are right. Deviations: there half of the attempts have a prompt without searches, here every attempt gives a trial
    answer; `repeat` is 0.1 in its script for every attempt. Its release counts the least searches over all right
    attempts, even those with search disabled, unlike its README.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False
    trials: ClassVar = KNOWER, "saas"

    price: Annotated[float, Ge(0)] = 0.05
    """Reward deducted for each search that was not needed."""
    min_right: Annotated[float, Interval(gt=0, le=1)] = 0.5
    """Minimum share of right trial answers with which a question counts as known."""
    repeat: Annotated[float, Ge(0)] = 0.0
    """Reward deducted for each query that the attempt, right or wrong, had made before in the same words."""

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        tried = [
            context.score(episode, call.answer or "") >= RIGHT
            for episode in group
            for call in episode.calls
            if call.prefix and call.role == KNOWER
        ]
        if not tried:
            raise DataError(
                f"episode {group[0].id} has no trial answer from memory, but credit boundary needs some: use agent saas"
            )
        spent = [len(episode.searches) for episode in group]
        right = [count for count, episode in zip(spent, group, strict=True) if episode.reward >= RIGHT]
        needed = 0 if sum(tried) / len(tried) >= self.min_right else min(right, default=0)
        rows = []
        for count, episode in zip(spent, group, strict=True):
            unneeded = count - needed if episode.reward >= RIGHT else 0
            repeated = count - len({norm(search.query) for search in episode.searches})
            rows.append(at_ends(episode, 0.0 - self.price * unneeded - self.repeat * repeated))
        return rows
