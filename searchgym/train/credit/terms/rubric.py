"""Credit term ``rubric``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import rubric_score
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric(EpisodeTerm):
    """Rewards an episode by the share of its question's rubric that the answer passes, in [0, 1].

    Source: DR-Rubric, arXiv 2606.01091; see `searchgym.scoring.judges.rubric.weighted_share`.
    """

    asks_judge: ClassVar = True

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        return rubric_score(context.judge, context.question(episode), answer_of(episode))
