"""Credit term ``process``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Term):
    """Rates the searches of an episode: the share of its queries that were new and found a page not found before.

    An episode without a query gets 0. Nothing is compared with the question or its answer.

    Source: AI-SearchPlanner, arXiv 2508.20368, in which a language model rates how rational a trajectory is; the rule
    in its place, and the weight that a recipe gives it, are ours.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        queries, seen, useful = set[str](), set[str](), 0
        for search in episode.searches:
            query, pages = " ".join(search.query.casefold().split()), {hit.passage.id for hit in search.hits}
            useful += query not in queries and bool(pages - seen)
            queries.add(query)
            seen |= pages
        return at_ends(episode, useful / max(len(episode.searches), 1))
