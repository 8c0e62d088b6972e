"""Credit term ``process``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, EpisodeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(EpisodeTerm):
    """Rewards an episode by the share of its queries that were new and found a new page.

    An episode without a query gets 0. The reward does not depend on the question or the answer.

    Source: AI-SearchPlanner, arXiv 2508.20368, in which a language model rates how rational a trajectory is. The rule
    used instead, and its weight in a recipe, are ours.
    """

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        queries, seen, useful = set[str](), set[str](), 0
        for search in episode.searches:
            query, pages = " ".join(search.query.casefold().split()), {hit.passage.id for hit in search.hits}
            useful += query not in queries and bool(pages - seen)
            queries.add(query)
            seen |= pages
        return useful / max(len(episode.searches), 1)
