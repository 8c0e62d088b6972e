"""Retriever ``tool``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.remote.tool import ToolRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard(RetrieverCard):
    """A Python function of the user, such as a web search or an MCP tool."""

    function: str
    """Name of the function, ``module:function``; it is called with one query and k."""
    calls: Annotated[int, Interval(ge=1, le=4096)] = 8
    """Maximum number of simultaneous calls."""

    def open(self, sources: Sources) -> ToolRetriever:
        """See `RetrieverCard.open`."""
        return ToolRetriever.of_name(self.function, calls=self.calls)
