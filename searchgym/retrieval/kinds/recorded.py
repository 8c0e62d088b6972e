"""Retriever ``recorded``."""

from __future__ import annotations

from dataclasses import dataclass

from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.remote.recorded import RecordedRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard(RetrieverCard):
    """A replay of the hits that the episodes of a run recorded."""

    episodes: str
    """Path of the run's ``episodes.jsonl``, or of its folder."""

    def open(self, sources: Sources) -> RecordedRetriever:
        """See `RetrieverCard.open`."""
        return RecordedRetriever.of_run(self.episodes)
