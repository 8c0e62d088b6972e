"""Credit term ``search-count``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term

ONE_SEARCH: Final = frozenset({"comparison", None, "", "na", "single"})
"""Values of `Question.kind` for which one search is wanted. ParallelSearch's data calls a question without a type (all
of NQ) ``na``; ``single`` is the worlds' name for what these are, questions of one page."""
COUNTED: Final = 0.35
"""``count_score`` of ParallelSearch's released script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCount(Term):
    """Rewards the number n of search actions: ``0.35 (1 - |n - 1|)``, or ``0.35 (min(n, 2) - 1)`` for several hops.

    One search is wanted at a comparison and at a question without a type (`ONE_SEARCH`), at least two at others.

    Source: the released reward of ParallelSearch, which counts the tag in the prompt too, where it stands twice:
    ``0.35 (1 - |m - 3|)`` and ``0.35 (1 - |min(m, 4) - 4|)`` of m = n + 2. Ours: that ``single`` is no type.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        actions = len({search.turn for search in episode.searches})
        one = context.question(episode).kind in ONE_SEARCH
        return at_ends(episode, COUNTED * (1 - abs(actions - 1) if one else min(actions, 2) - 1))
