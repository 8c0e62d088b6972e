"""Credit term ``candidates``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import best_of_candidates, parts_of, rubric_of, weightings
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(EpisodeTerm):
    """Rewards an answer with several candidates by how well the candidates cover the question's rubric, in [0, 1].

    A candidate's score under a weighting of the criteria is the sum of the weights of the criteria that it passes. The
    reward is the best candidate's score under each random weighting, averaged over the weightings, which are the same
    for all attempts at a question. An answer with more than `most` candidates gets 0.

    Source: VPO, arXiv 2605.22817; see `scoring.judges.rubric.best_of_candidates`. The use of criteria as components of
    the reward, and the limit, are ours.
    """

    asks_judge: ClassVar = True

    most: Annotated[int, Ge(1)] = 4
    """Maximum number of candidates in an answer."""
    draws: Annotated[int, Ge(1)] = 64
    """Number of random weightings of the criteria over which the score is averaged."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question = context.question(episode)
        criteria, parts = rubric_of(question), parts_of(answer_of(episode))
        if not 1 <= len(parts) <= self.most:
            return 0.0
        rows = [context.judge.passes(question.text, part, criteria) for part in parts]
        weights = weightings(question.id, len(criteria), self.draws)
        return best_of_candidates(np.array(rows, np.float64), weights)
