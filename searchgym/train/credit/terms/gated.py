"""Credit term ``gated``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import gated, rubric_of
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated(EpisodeTerm):
    """Rewards an answer by its rubric score, gated by mandatory criteria (bottom lines), in [0, 1].

    The bottom lines are the criteria with ``bottom: true``, and the share of the episode's calls that were legal. See
    `searchgym.scoring.judges.rubric.gated`.

    Source: SearchLLM, arXiv 2603.10473.
    """

    asks_judge: ClassVar = True

    delta: Annotated[float, Ge(1e-06)] = 0.05
    """Smoothing of the gate: with one of n bottom lines missed, the gate is about delta to the power of 1/n."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question = context.question(episode)
        criteria = rubric_of(question)
        passed = context.judge.passes(question.text, answer_of(episode), criteria)
        legal = sum(call.legal for call in episode.calls) / max(len(episode.calls), 1)
        return gated(passed, criteria, legal, self.delta)
