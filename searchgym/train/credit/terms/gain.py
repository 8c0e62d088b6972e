"""Credit term ``gain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.errors import DataError
from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Term):
    """Rewards a call that proposes an answer by the answer's gain in score over the previous proposal.

    The call that proposes answer k gets ``s_k - s_{k-1}``, and the first one ``s_0``; other calls get 0. The rewards of
    an episode sum to the score of its last answer. Use it with ``advantage.chain: episode``, which passes the rewards
    back to the calls that led to the answers. This term is ours, not from a paper.

    An episode whose answer was proposed by no call is refused with a DataError.
    """

    rewards_one: ClassVar = "call"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards, before, proposed = [0.0] * len(episode.calls), 0.0, False
        for index, call in enumerate(episode.calls):
            if call.answer is not None and not call.prefix:
                score = context.score(episode, call.answer)
                rewards[index], before, proposed = score - before, score, True
        if episode.stop_reason == "answer" and not proposed:
            raise DataError(
                f"episode {episode.id}: no call proposes an answer, and credit gain needs an agent whose calls do"
            )
        return rewards
