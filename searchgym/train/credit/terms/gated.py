"""Credit term ``gated``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from searchgym.records import Episode
from searchgym.scoring.judges.rubric import gated, rubric_of
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated(Term):
    """Rewards an episode by its rubric behind a gate of bottom lines, in [0, 1]; see `judges.rubric.gated`.

    Bottom lines are the criteria with ``bottom: true`` and the share of the episode's calls that were legal.

    Source: SearchLLM, arXiv 2603.10473.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False
    asks_judge: ClassVar = True

    delta: Annotated[float, Ge(1e-06)] = 0.05
    """Smoothing of the gate: with one of n bottom lines missed, the gate is about delta to the power of 1/n."""

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        question, answer = context.question(episode), "" if episode.answer is None else episode.answer.text
        criteria = rubric_of(question)
        passed = context.judge.passes(question.text, answer, criteria)
        legal = sum(call.legal for call in episode.calls) / max(len(episode.calls), 1)
        return at_ends(episode, gated(passed, criteria, legal, self.delta))
