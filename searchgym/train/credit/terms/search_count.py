"""Credit term ``search-count``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm

ONE_SEARCH: Final = frozenset({"comparison", None, "", "na", "single"})
"""Values of `Question.kind` for which one search is wanted. ParallelSearch's data calls a question without a type (all
of NQ) ``na``; ``single`` is the worlds' name for what these are, questions of one page."""
COUNTED: Final = 0.35
"""``count_score`` of ParallelSearch's released script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCount(EpisodeTerm):
    """Rewards the number n of search actions: ``0.35 (1 - |n - 1|)``, or ``0.35 (min(n, 2) - 1)`` for several hops.

    One search is wanted at a comparison and at a question without a type (`ONE_SEARCH`), at least two at others.

    Source: the released reward of ParallelSearch, which counts the tag in the prompt too, where it stands twice:
    ``0.35 (1 - |m - 3|)`` and ``0.35 (1 - |min(m, 4) - 4|)`` of m = n + 2. Ours: that ``single`` is no type.
    """

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        actions = len({search.turn for search in episode.searches})
        one = context.question(episode).kind in ONE_SEARCH
        return COUNTED * (1 - abs(actions - 1) if one else min(actions, 2) - 1)
