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
"""Reward of a wrong answer if every tool was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiersearch(Term):
    """Computes HierSearch's reward: the episode's reward or, if that is 0, up to 0.1 for the share of tools used.

    The share of tools is the workflow's note ``tools``. A role with an illegal output gets 0 for all its calls, and so
    does every call of an episode that was cut off or has no answer or an empty one. Use this term instead of
    ``outcome``.

    Source: the released reward of HierSearch (plageon/HierSearch), whose levels are trained one after the other, each
    on its own text; here roles correspond to levels.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    local_first: bool = False
    """If true, `order_penalty` is added to the episode's reward, which penalises early searches of other sources."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if "outcome" in setting.terms:
            yield "it replaces outcome: name only one of the two"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        if is_overlong(episode) or episode.answer is None or not episode.answer.text:
            return [0.0] * len(episode.calls)
        score = episode.reward + (order_penalty([s.source for s in episode.searches]) if self.local_first else 0.0)
        value = score if score > 0 else TOOLS * episode.notes.get("tools", 0.0)
        refused = {call.role for call in episode.calls if not call.legal}
        return at_ends(episode, lambda calls: 0.0 if episode.calls[calls[-1]].role in refused else value)


def order_penalty(sources: Sequence[str]) -> float:
    """Returns HierSearch's penalty, at most 0, for early searches of sources other than the environment's corpus.

    The first such search decides: -1 among the first three, then -0.2, -0.15, -0.1 (fourth to sixth), -0.045, -0.03
    (seventh, eighth), and -0.01 later.

    Args:
        sources: Source of each query in order; empty for the environment's corpus.
    """
    first = next((index for index, source in enumerate(sources) if source), None)
    if first is None:
        return 0.0
    if first < 3:
        return -1.0
    if first < 6:
        return -0.05 * (7 - first)
    return -0.015 * (9 - first) if first < 8 else -0.01
