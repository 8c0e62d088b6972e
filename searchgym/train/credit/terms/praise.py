"""Credit term ``praise``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Praise(Term):
    """Rewards each search by the improvement of a trial answer that the model gives after it.

    The prefix answers (trial answers) have scores v_0 (before the first search) to v_T. The call that made search t
    gets ``alpha (v_t - v_{t-1})``, and the prefix answer itself gets v_t. The rewards of an episode's searches sum to
    ``alpha (v_T - v_0)``. An episode without prefix answers is refused with a DataError.

    Source: PRAISE, arXiv 2604.03675 (alpha 0.5). The outcome is a separate term.
    """

    rewards_one: ClassVar = "call"
    trains_prefixes: ClassVar = True

    alpha: Annotated[float, Ge(0)] = 0.5
    """Weight of the change in the prefix answer's score that a search causes."""

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards = [0.0] * len(episode.calls)
        before: float | None = None
        acted: int | None = None
        for index, call in enumerate(episode.calls):
            if not call.prefix:
                acted = index
                continue
            rewards[index] = score = context.score(episode, call.answer or "")
            if before is not None and acted is not None:
                rewards[acted] = self.alpha * (score - before)
            before, acted = score, None
        if before is None and episode.calls:
            raise DataError(
                f"episode {episode.id} has no prefix answers, but credit praise needs them: use agent praise"
            )
        return rewards
