"""Credit term ``hiersearch``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends, is_overlong
from searchgym.train.credit.term import CreditContext, Term

TOOLS: Final = 0.1
"""Reward of a wrong answer for which every tool was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiersearch(Term):
    """Gives the reward of an episode, or, where that is 0, up to 0.1 for the share of tools that the planner used.

    The share is the workflow's note ``tools``. A role that wrote something illegal gets 0 for all its calls, and so
    does every call of an episode that was cut off or has no answer, or an empty one. It takes the place of ``outcome``.

    Source: the released reward of HierSearch (plageon/HierSearch), whose levels are trained one after the other, each
    on its own text; here a role stands for a level.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    local_first: bool = False
    """If true, early searches of a further retriever are penalised (`order_penalty`), before anything else is added."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if "outcome" in setting.terms:
            yield "it takes the place of outcome; name one of them"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        if is_overlong(episode) or episode.answer is None or not episode.answer.text:
            return [0.0] * len(episode.calls)
        score = episode.reward + (order_penalty([s.source for s in episode.searches]) if self.local_first else 0.0)
        value = score if score > 0 else TOOLS * episode.notes.get("tools", 0.0)
        refused = {call.role for call in episode.calls if not call.legal}
        return at_ends(episode, lambda calls: 0.0 if episode.calls[calls[-1]].role in refused else value)


def order_penalty(sources: Sequence[str]) -> float:
    """Returns HierSearch's penalty for early searches of another source than the environment's own, at most 0.

    The first such search decides: -1 among the first three, then -0.2, -0.15, -0.1 (fourth to sixth), -0.045, -0.03
    (seventh, eighth), and -0.01 later.

    Args:
        sources: Source of each query in order; empty for the environment's own.
    """
    first = next((place for place, source in enumerate(sources) if source), None)
    if first is None:
        return 0.0
    if first < 3:
        return -1.0
    if first < 6:
        return -0.05 * (7 - first)
    return -0.015 * (9 - first) if first < 8 else -0.01
