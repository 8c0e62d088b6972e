"""Credit term ``density``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.evidence import useful_searches
from searchgym.train.credit.term import CreditContext, EpisodeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Density(EpisodeTerm):
    """Rewards a right answer by the share of the episode's searches that found a new gold page.

    With the environment's reward r and share u, the last call of each sequence gets ``max(r, 0) u``; together with
    ``outcome`` the sum is ``r (1 + u)``. A wrong answer earns nothing, and a search that brings no new gold page lowers
    the reward of a right one. An episode without searches, and a question without gold pages, has u = 0.

    Source: Search-R2, arXiv 2602.03647, its reward ``r_out (1 + r_proc)`` with exact match. Deviation: there a language
    model judges which lists of hits help; here a list helps if it contains a gold page that the episode had not seen.
    """

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        useful = useful_searches(episode, context.question(episode))
        return max(episode.reward, 0.0) * sum(useful) / len(useful) if useful else 0.0
