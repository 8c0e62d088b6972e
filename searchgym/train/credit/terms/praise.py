"""Credit term ``praise``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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
    gets ``alpha (v_t - v_{t-1})``, and the prefix answer itself gets its score. The rewards of an episode's searches
    sum to ``alpha (v_T - v_0)``. An episode without prefix answers is refused with a DataError.

    If the agent writes n prefix answers each time, v is their mean score. With a `prover` K above 1, v is the chance
    that at least one of K is right, by the unbiased estimate ``1 - C(n - c, K) / C(n, K)`` for c right ones, so it
    rises most where right answers are still rare; n below K is refused.

    Source: PRAISE, arXiv 2604.03675 (alpha 0.5, n = 1); with a prover, progress as in PAV, arXiv 2410.08146, whose
    prover is the best of K = 4. Deviations from PAV: the prover is the policy that must answer now; its values are
    counted, not predicted by a trained verifier. The outcome is a separate term.
    """

    rewards_one: ClassVar = "call"
    trains_prefixes: ClassVar = True

    alpha: Annotated[float, Ge(0)] = 0.5
    """Weight of the change in the prefix answer's score that a search causes."""
    prover: Annotated[int, Ge(1)] = 1
    """Number K of prefix answers of which one must be right."""

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards = [0.0] * len(episode.calls)
        before: float | None = None
        acted: int | None = None
        for prefix, calls in itertools.groupby(enumerate(episode.calls), key=lambda entry: entry[1].prefix):
            indices = [index for index, _ in calls]
            if not prefix:
                acted = indices[-1]
                continue
            for index in indices:
                rewards[index] = context.score(episode, episode.calls[index].answer or "")
            value = self._value([rewards[index] for index in indices], episode)
            if before is not None and acted is not None:
                rewards[acted] = self.alpha * (value - before)
            before = value
        if before is None and episode.calls:
            raise DataError(
                f"episode {episode.id} has no prefix answers, but credit praise needs them: use agent praise"
            )
        return rewards

    def _value(self, scores: Sequence[float], episode: Episode) -> float:
        """Returns the value of a prefix, given the scores of its trial answers."""
        n, k = len(scores), self.prover
        if k == 1:
            return math.fsum(scores) / n
        if n < k:
            raise DataError(
                f"episode {episode.id} has {n} prefix answers at a time, praise.prover needs {k}: use agent pav, or a "
                "card with more prefix_answers"
            )
        return 1 - math.comb(n - sum(score >= 1 for score in scores), k) / math.comb(n, k)
