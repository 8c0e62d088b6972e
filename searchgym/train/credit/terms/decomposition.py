"""Credit term ``decomposition``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm

COMPARISON: Final = "comparison"
"""`Question.kind` of questions with independent parts (as in HotpotQA and 2WikiMultihopQA)."""
DECOMPOSED, WHOLE = 0.45, 0.15
"""``3 comp_score`` and ``comp_score`` of ParallelSearch's released script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition(EpisodeTerm):
    """Rewards the first search: 0.45 for several queries at a comparison, 0.15 for a single query at other questions.

    An episode that does not search counts as one query.

    Source: the released reward of ParallelSearch, with the values of its script. That reward too depends only on the
    first search, not on the answer.
    """

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        first = min((search.turn for search in episode.searches), default=0)
        several = sum(search.turn == first for search in episode.searches) > 1
        if context.question(episode).kind == COMPARISON:
            return DECOMPOSED if several else 0.0
        return 0.0 if several else WHOLE
