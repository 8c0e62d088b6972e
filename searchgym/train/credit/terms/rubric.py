"""Credit term ``rubric``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import rubric_score
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of

FULL: Final = 0.99
"""Smallest reward that counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric(EpisodeTerm):
    """Rewards an episode by the share of its question's rubric that the answer passes, in [0, 1].

    Source: DR-Rubric, arXiv 2606.01091; see `searchgym.scoring.judges.rubric.weighted_share`.
    """

    asks_judge: ClassVar = True

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        return rubric_score(context.judge, context.question(episode), answer_of(episode))

    @override
    def figures(self, rewards: Sequence[float]) -> Mapping[str, float]:
        return {"polarisation": polarisation(rewards)}


def polarisation(rewards: Sequence[float]) -> float:
    """Returns the share of rewards that are 0 or at least 0.99, between which a rubric no longer tells answers apart.

    Source: DR-Rubric, arXiv 2606.01091, by notes: its rounds of writing rubrics end when this share exceeds both 0.15
    and twice that of the round before.

    Args:
        rewards: At least one, each in [0, 1].
    """
    return sum(reward == 0 or reward >= FULL for reward in rewards) / len(rewards)
