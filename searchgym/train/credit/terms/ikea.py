"""Credit term ``ikea``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm

BONUS: Final = (0.6, 0.4, 0.2)
"""Bonus of a right answer after 0, 1 and 2 searches."""
TRIED: Final = 0.05
"""Reward of a wrong answer after a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ikea(EpisodeTerm):
    """Rewards a right answer more if it took fewer searches, and a wrong answer only if the agent searched.

    Right: 1.6, 1.4, 1.2 and 1 after 0, 1, 2 and more search actions; wrong: 0.05 after a search, else 0; any illegal
    output: -1. Right means exact match. Use this term instead of ``outcome``.

    Source: the released reward of IKEA, arXiv 2505.07596 (hzy312/knowledge-r1), which also requires thoughts.
    """

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if "outcome" in setting.terms:
            yield "it replaces outcome: name only one of the two"

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        if not all(call.legal for call in episode.calls if not call.prefix):
            return -1.0
        actions = len({search.turn for search in episode.searches})
        if episode.scores.get("em", 0.0) > 0:
            return 1.0 + (BONUS[actions] if actions < len(BONUS) else 0.0)
        return TRIED if actions else 0.0
