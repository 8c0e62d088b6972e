"""Credit term ``ikea``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term

BONUS: Final = (0.6, 0.4, 0.2)
"""Bonus of a right answer after 0, 1 and 2 searches."""
TRIED: Final = 0.05
"""Reward of a wrong answer after a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ikea(Term):
    """Rewards a right answer the more the fewer searches it took, and a wrong one only if the agent searched.

    Right: 1.6, 1.4, 1.2 and 1 after 0, 1, 2 and more search actions; wrong: 0.05 after a search, else 0; any illegal
    output: -1. Right means exact match. It takes the place of ``outcome``.

    Source: the released reward of IKEA, arXiv 2505.07596 (hzy312/knowledge-r1), which also asks for thoughts.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    def check(self, setting: Setting) -> Iterable[str]:
        """See `Term.check`."""
        if "outcome" in setting.terms:
            yield "it takes the place of outcome; name one of them"

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        if not all(call.legal for call in episode.calls if not call.prefix):
            return at_ends(episode, -1.0)
        actions = len({search.turn for search in episode.searches})
        if episode.scores.get("em", 0.0) > 0:
            return at_ends(episode, 1.0 + (BONUS[actions] if actions < len(BONUS) else 0.0))
        return at_ends(episode, TRIED if actions else 0.0)
