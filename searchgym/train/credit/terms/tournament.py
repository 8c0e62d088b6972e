"""Credit term ``tournament``."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import rubric_of
from searchgym.scoring.judges.tournament import tournament
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Rows, Term, UnjudgedError, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tournament(Term):
    """Rewards an episode by its answer's wins in matches against other answers of its group, in [0, 1].

    Source: Tournament-GRPO; see `searchgym.scoring.judges.tournament.tournament`.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False
    asks_judge: ClassVar = True

    rounds: Annotated[int, Ge(1)] = 4
    """Number of tournament rounds among a group's answers."""

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        question = context.question(group[0])
        rng = np.random.default_rng(zlib.crc32((group[0].group_uid or question.id).encode("utf-8", "surrogatepass")))
        answers = [answer_of(episode) for episode in group]
        scores = tournament(context.judge, question.text, answers, rubric_of(question), self.rounds, rng).scores
        if unjudged := [index for index, score in enumerate(scores) if score is None]:
            why = f"episode {group[unjudged[0]].id}: the judge gave no verdict in any match of its answer"
            raise UnjudgedError(unjudged, why)
        return [at_ends(episode, score or 0.0) for episode, score in zip(group, scores, strict=True)]
