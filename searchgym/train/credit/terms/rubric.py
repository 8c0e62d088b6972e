"""Credit term ``rubric``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import rubric_score
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric(Term):
    """Rewards an episode by the share of its question's rubric that the answer passes, in [0, 1].

    Source: DR-Rubric, arXiv 2606.01091; see `searchgym.scoring.judges.rubric.weighted_share`.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False
    asks_judge: ClassVar = True

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        answer = "" if episode.answer is None else episode.answer.text
        return at_ends(episode, rubric_score(context.judge, context.question(episode), answer))
