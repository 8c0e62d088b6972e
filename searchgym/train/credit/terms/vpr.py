"""Credit term ``vpr``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.evidence import acting_calls, new_pages
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Vpr(Term):
    """Rewards a call with 1 if its search, or the page it opened, found a new gold page, else with 0.

    Use it with ``advantage.chain: none`` and ``normalise: role-turn``, so that each turn is compared with the same turn
    of other attempts, and together with ``outcome``, which verifies the turn that answers.

    Source: Verifiable Process Rewards, arXiv 2605.10325: an oracle judges each action. Deviations: the paper's oracles
    are for games; a new gold page as the verification of a search is ours. According to its repository's README, four
    candidates are compared at every state; here whole attempts are compared turn by turn, as third-party notes describe
    it.
    """

    rewards_one: ClassVar = "call"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards, acted = [0.0] * len(episode.calls), acting_calls(episode)
        for turn, pages in new_pages(episode, context.question(episode)).items():
            if pages and turn in acted:
                rewards[acted[turn]] = 1.0
        return rewards
