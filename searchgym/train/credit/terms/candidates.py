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
    """Rewards an episode whose answer gives several candidates by how well the set covers its rubric, in [0, 1].

    Each candidate has a vector of 1 for the criteria that it passes and 0 for the others; the reward is the mean over
    weightings of the criteria of the best candidate's weighted sum. The weightings are the same for every attempt at a
    question. An answer of more than `most` candidates gets 0.

    Source: VPO, arXiv 2605.22817; see `scoring.judges.rubric.best_of_candidates`. That criteria are the components
    of a reward, and the limit, are ours.
    """

    asks_judge: ClassVar = True

    most: Annotated[int, Ge(1)] = 4
    """Most candidates in an answer."""
    draws: Annotated[int, Ge(1)] = 64
    """Number of weightings over which a set of candidates is scored."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question = context.question(episode)
        criteria, parts = rubric_of(question), parts_of(answer_of(episode))
        if not 1 <= len(parts) <= self.most:
            return 0.0
        rows = [context.judge.passes(question.text, part, criteria) for part in parts]
        drawn = weightings(question.id, len(criteria), self.draws)
        return best_of_candidates(np.array(rows, np.float64), drawn)
