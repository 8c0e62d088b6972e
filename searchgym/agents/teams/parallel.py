"""ParallelSearch: several independent queries in one search action (repository Tree-Shu-Zhao/ParallelSearch)."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from searchgym.agents.base import EpisodeIO
from searchgym.agents.monolithic import Monolithic
from searchgym.records import Action, Invalid, Search

QUERY_SEPARATOR: Final = "##"
"""Text between the queries of one search."""


def split_queries(action: Action) -> Action:
    """Splits the text of a search at separators into queries: ``first query ## second query``.

    Empty and repeated queries are dropped; a search without any query becomes `Invalid`. Other actions are returned
    unchanged.
    """
    if not isinstance(action, Search):
        return action
    parts = (part.strip() for query in action.queries for part in query.split(QUERY_SEPARATOR))
    queries = tuple(dict.fromkeys(part for part in parts if part))
    return Search(queries, action.source) if queries else Invalid("every query is empty")


class ParallelSearch(Monolithic):
    """Monolithic agent that may send several queries in one turn, ``<search>first ## second</search>``.

    The environment must allow several queries (`max_queries`); a search with more queries is an invalid action.
    Everything else is as in `Monolithic`. The credit terms ``decomposition`` and ``search-count`` are its rewards.
    """

    @override
    def read(self, text: str, io: EpisodeIO) -> Action:
        return split_queries(super().read(text, io))
