"""Credit term ``ranks``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.records import Episode, Hit, Question
from searchgym.retrieval.kinds.hybrid import fuse
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.evidence import gold_ranks
from searchgym.train.credit.term import CreditContext, EpisodeTerm

MOST_SEARCHES: Final = 8
"""Number of an episode's first searches whose subsets are compared, since their number doubles with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(EpisodeTerm):
    """Rewards queries by the ranks of the gold pages in the fused list of their hits.

    The hits of an episode's searches are merged by rank-score fusion (`searchgym.retrieval.kinds.hybrid.fuse` with
    constant 0, ties by score). A gold page at rank r is worth `rank_value` of r, between 2 and 0; of several, number i
    from the top, counted from 0, is multiplied by ``decay ** i``. The last call of each sequence gets the sum, or 0 if
    its output is illegal: name the `roles` that write queries. For a question without gold pages, the first passage
    with a gold answer counts as one.

    Source: ACQO, arXiv 2601.21208, by notes. Deviations: an illegal output earns 0 here, and its penalty by ``format``
    (theirs: a negative constant, not known); i from 0 is inferred, as is that the bonus is added to each page's value.
    """

    optimistic: bool = False
    """If true, the sum is that of the best subset of the searches (ACQO's first stage); if false, of all of them."""
    decay: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Factor between gold pages in order of their ranks; 0.6 for HotpotQA."""
    bonus: Annotated[float, Ge(0)] = 0.0
    """Weight of ``1 / log2(r + 1)``, added to the value of a gold page at rank r (ACQO's second stage)."""
    bonus_ranks: Annotated[int, Ge(1)] = 3
    """Last rank that gets the bonus."""

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        rewards = at_ends(episode, self.value(episode, context))
        return [reward if call.legal else 0.0 for reward, call in zip(rewards, episode.calls, strict=True)]

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question, lists = context.question(episode), [search.hits for search in episode.searches]
        if not self.optimistic or len(lists) < 2:
            return self.worth(question, lists)
        first = lists[:MOST_SEARCHES]
        subsets = itertools.chain.from_iterable(itertools.combinations(first, n + 1) for n in range(len(first)))
        return max(self.worth(question, subset) for subset in subsets)

    def worth(self, question: Question, lists: Sequence[Sequence[Hit]]) -> float:
        """Returns the worth of the gold pages in the fused list of some searches' hits."""
        fused = fuse(lists, sum(map(len, lists)), constant=0, ties="score")
        ranks = gold_ranks(question, [hit.passage for hit in fused])
        return math.fsum(
            self.decay**i * (rank_value(rank) + self.bonus * (rank <= self.bonus_ranks) / math.log2(rank + 1))
            for i, rank in enumerate(ranks)
        )


def rank_value(rank: int) -> float:
    """Returns the value of a gold page at a 1-based rank: from 2 to 1 over ranks 1 to 10, from 1 to 0 up to 100."""
    return 2 - (rank - 1) / 9 if rank <= 10 else max(0.0, 1 - (rank - 10) / 90)
