"""Credit term ``search-count``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm

ONE_SEARCH: Final = frozenset({"comparison", None, "", "na", "single"})
"""Values of `Question.kind` for which one search is right. ParallelSearch's data call a question without a type (all of
NQ) ``na``; ``single`` are one-page questions of worlds."""
COUNTED: Final = 0.35
"""Scale of the reward, ``count_score`` in ParallelSearch's released script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCount(EpisodeTerm):
    """Rewards the number n of search actions: ``0.35 (1 - |n - 1|)``, or ``0.35 (min(n, 2) - 1)`` for several hops.

    Comparisons and questions without a type (`ONE_SEARCH`) should take one search, others at least two.

    Source: the released reward of ParallelSearch, which also counts the search tag in the prompt, where it occurs
    twice: ``0.35 (1 - |m - 3|)`` and ``0.35 (1 - |min(m, 4) - 4|)`` of m = n + 2. To treat ``single`` as no type is
    ours.
    """

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        actions = len({search.turn for search in episode.searches})
        one = context.question(episode).kind in ONE_SEARCH
        return COUNTED * (1 - abs(actions - 1) if one else min(actions, 2) - 1)
