"""Credit term ``difference``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Term):
    """Rewards each turn of a team by its change to the score of the team's proposed answer.

    A call that proposes an answer gets the answer's score s_t. Every call between two proposals gets the whole
    difference between their scores, ``s_t - s_{t-1}``; every call before the first proposal gets that proposal's score;
    calls after the last proposal get 0. The differences of an episode sum to ``s_T - s_0``.

    Source: M-ASK, arXiv 2601.04703, and its released code: planning and answering get s; searching, summarising and
    updating get the difference; a search that ends the episode gets 0.
    """

    rewards_one: ClassVar = "call"
    sums_up: ClassVar = False

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards, between, before = [0.0] * len(episode.calls), list[int](), 0.0
        for index, call in enumerate(episode.calls):
            if call.prefix:
                continue
            if call.answer is None:
                between.append(index)
                continue
            rewards[index] = score = context.score(episode, call.answer)
            for earlier in between:
                rewards[earlier] = score - before
            between, before = [], score
        return rewards
