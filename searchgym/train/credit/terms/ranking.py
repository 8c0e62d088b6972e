"""Credit term ``ranking``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from typing_extensions import override

from searchgym.records import Call, Episode, Question
from searchgym.scoring.ranking import mean_hit, ndcg
from searchgym.train.credit.evidence import fetched_gains
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Term):
    """Rewards a ranker's call by the quality q of its order and by the episode's reward r; other calls get 0.

    If a relevant page was fetched, the reward is q if q is at most `gate`, else q + r; without one it is r. An illegal
    output gets 0, so that only ``format`` applies. q is measured against the gold pages among the fetched ones
    (`fetched_gains`).

    Source: CoSearch, arXiv 2604.17555, whose q is the mean of hits of the gold answer, with nDCG as an ablation, and
    whose gate is 0.5 (0.8, with a binarised r, in its released script). Gold pages as relevant pages are ours.
    Deviation: rankers of an episode with an illegal reasoner learn too.
    """

    rewards_one: ClassVar = "call"
    normalise: ClassVar = "query"

    measure: Literal["ndcg", "hits"] = "ndcg"
    """Measure of an order's quality: nDCG of the selected pages, or the mean of Hit@1, Hit@3 and Hit@5 (CoSearch)."""
    gate: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Quality above which the episode's reward is added."""

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards = []
        for call in episode.calls:
            if call.ranked is None or not call.legal:
                rewards.append(0.0)
                continue
            quality = ranking_quality(context.question(episode), episode, call, self.measure)
            if quality is None:
                rewards.append(episode.reward)
            else:
                rewards.append(quality + (episode.reward if quality > self.gate else 0.0))
        return rewards


def ranking_quality(question: Question, episode: Episode, call: Call, measure: str = "ndcg") -> float | None:
    """Returns the quality of a ranker's order; None if no relevant page was fetched.

    Args:
        question: Question of the episode.
        episode: The episode.
        call: Call that ranked the hits of a search.
        measure: ``ndcg``, cut off at the number of selected pages, or ``hits`` (`mean_hit`).
    """
    gains, order = fetched_gains(question, episode, call), call.ranked or ()
    if not any(gains):
        return None
    selected = [gains[index] for index in order]
    return mean_hit(selected) if measure == "hits" else ndcg(selected, [gain for gain in gains if gain], len(order))
