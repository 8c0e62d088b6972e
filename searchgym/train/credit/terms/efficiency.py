"""Credit term ``efficiency``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.efficiency import LIMITS, amounts, area, spent_for
from searchgym.train.credit.evidence import gold_turns
from searchgym.train.credit.term import CreditContext, EpisodeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(EpisodeTerm):
    """Rewards the gold pages that an episode reads, the more the less it has spent until then.

    The last call of each sequence gets the area under the evidence recall over the logarithm of what was spent, in
    [0, 1]: 1 if every gold page was read for the lower limit or less, 0 if none was read. Each halving of what was
    spent adds the same. It is 0 for a question without gold pages.

    Source: the measure ``evidence_by_tokens`` of evaluations (`searchgym.scoring.efficiency`); that Contextual AI
    rewards evidence per token of context is known, its formula is not public.
    """

    unit: Literal["tokens", "searches"] = "tokens"
    """What is spent: different tokens in all contexts, or queries."""
    right: bool = False
    """If true, only an episode whose answer gets the full reward of the environment is rewarded: a cheap search for
    evidence that is then not used earns nothing."""
    answered: bool = False
    """If true, only an episode that ends with an answer is rewarded, so that a policy does not search until its turns
    run out."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        if (self.right and episode.reward < 1.0) or (self.answered and episode.stop_reason != "answer"):
            return 0.0
        turns = list(gold_turns(episode, context.question(episode)).values())
        return area(amounts(spent_for(episode, turns), self.unit), LIMITS[self.unit])
