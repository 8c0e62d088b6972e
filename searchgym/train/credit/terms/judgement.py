"""Credit term ``judgement``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge, Le
from typing_extensions import override

from searchgym.agents.parsing import without_thoughts
from searchgym.records import Episode
from searchgym.train.credit.evidence import useful_searches
from searchgym.train.credit.term import CreditContext, EpisodeTerm

JUDGED: Final = re.compile(r"<judge>\s*(yes|no)\s*</judge>", re.IGNORECASE)
"""Matches a judgement of the last search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(EpisodeTerm):
    """Rewards an episode for judging each of its searches rightly, as agent ``reseek`` does.

    After each turn that searched, the next response says Yes or No in a tag ``judge``; Yes is right if the turn found a
    gold page that the episode had not seen. A judgement earns `right`, or costs `wrong_yes` or `wrong_no`; a missing
    one counts as a wrong No. The last call of each sequence gets the mean over the searches, so that more searches earn
    no more; an episode without an answer gets at most 0, so that it neither earns nor saves anything by not answering.

    Source: ReSeek, arXiv 2510.00568, and the rule-based reward of its repository: +0.3, +0.1 more if the answer is
    right, -0.6 and -0.3, summed. Deviations: the mean (`summed` for the sum, which many easy searches farm); useful is
    a new gold page, not a page with the answer; Yes is not right merely because the answer is; and wrong judgements
    cost an episode without an answer as much as another.
    """

    right: Annotated[float, Ge(0)] = 0.3
    """Reward of a right judgement."""
    with_answer: Annotated[float, Ge(0)] = 0.1
    """Further reward of a right judgement in an episode with reward 1."""
    wrong_yes: Annotated[float, Le(0)] = -0.6
    """Reward of a Yes about a search that found nothing new."""
    wrong_no: Annotated[float, Le(0)] = -0.3
    """Reward of a No, or no judgement, about a search that found a new gold page; and of no judgement at all."""
    summed: bool = False
    """If true, the sum over the searches is the reward, as in the source, instead of their mean."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        useful: dict[int, bool] = {}
        for search, of_use in zip(episode.searches, useful_searches(episode, context.question(episode)), strict=True):
            useful[search.turn] = useful.get(search.turn, False) or of_use
        right = self.right + (self.with_answer if episode.reward >= 1 else 0.0)
        rewards = [
            right if yes == useful[turn] else self.wrong_yes if yes else self.wrong_no
            for turn, yes in judgements(episode)
            if turn in useful
        ]
        total = sum(rewards) / (1 if self.summed or not rewards else len(rewards))
        return total if episode.stop_reason == "answer" else min(total, 0.0)


def judgements(episode: Episode) -> Iterator[tuple[int, bool | None]]:
    """Yields what an episode's responses say about the turn before each of them: Yes is True; None if nothing."""
    for call in episode.calls:
        if not call.prefix:
            match = JUDGED.search(without_thoughts(call.text))
            yield call.turn - 1, None if match is None else match[1].lower() == "yes"
