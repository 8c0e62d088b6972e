"""CoSearch: a reasoner that searches and answers, and a ranker of the retrieved pages (arXiv 2604.17555)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from searchgym.agents.base import Chat, EpisodeIO, Observation, accept, documents
from searchgym.agents.jade import read_selection
from searchgym.agents.monolithic import Monolithic
from searchgym.agents.parsing import Parsed
from searchgym.records import Action, Call, Hit, Question, Search, Searched

PASSAGES: Final = 3
"""Default number of pages per search that the reasoner sees."""


def read_order(text: str, count: int, keep: int) -> Parsed[tuple[int, ...]]:
    """Parses an order of pages, ``<id>Document4,Document0</id>``; the value is the 0-based numbers to show, in order.

    Legal: 1 to `keep` distinct numbers below `count`, and nothing else. The other pages follow in the retriever's
    order until `keep` are chosen. Fallback: the retriever's order.

    Args:
        text: Output of the ranker.
        count: Number of pages that it saw.
        keep: Maximum number of pages to show.
    """
    parsed = read_selection(text, count)
    legal = parsed.legal and len(parsed.value) <= keep
    named = parsed.value if legal else []
    rest = [number for number in range(count) if number not in named]
    return Parsed(tuple([*named, *rest][:keep]), legal)


def fetched_for(call: Call, searches: Sequence[Searched]) -> tuple[Hit, ...]:
    """Returns the hits that a ranker's call ordered: those of the previous turn, without repeated passages."""
    return fetched([hit for search in searches if search.turn == call.turn - 1 for hit in search.hits])


def fetched(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Returns hits in their original order, without repeated passages."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.passage.id, hit)
    return tuple(first.values())


class CoSearch(Monolithic):
    """Monolithic agent whose pages are chosen and ordered by a second role, the ranker (CoSearch).

    A search fetches the environment's `top_k` pages. The ranker reads the question, the query and all
    of them, and names the best ones in order (`read_order`); the reasoner sees the first `keep`. With one page there is
    nothing to rank, and the ranker is not called. The ranker's call records the order (`Call.ranked`); the episode's
    searches record the fetched pages. The credit term ``ranking`` is the ranker's reward, and ``normalise: query``
    compares its calls.

    Source: the paper and notes on its code. Deviations: the format of the order is ours, pages that it omits may
    follow (there it lists all pages to keep), 3 pages are kept as in Search-R1 (there 5 of 50), and the ranker need
    not think. With several queries in one action, the ranker orders all their hits at once.

    Args:
        keep: Maximum number of pages that the reasoner sees of a search.
        passage_words: Maximum number of words that the ranker sees of each page.
        observation_words: Maximum number of words of all pages that the reasoner sees of a search.
    """

    def __init__(self, keep: int = PASSAGES, passage_words: int = 100, observation_words: int = 500) -> None:
        super().__init__(role="reasoner")
        self.keep, self.passage_words, self.observation_words = keep, passage_words, observation_words

    @override
    async def act(self, action: Action, chat: Chat, io: EpisodeIO, question: Question) -> Observation:
        seen = await super().act(action, chat, io, question)
        hits = fetched(seen.hits)
        if seen.done or not isinstance(action, Search) or len(hits) < 2:
            return seen
        pages = documents(hits, self.passage_words, "Document", first=0)
        reply = await io.generate("ranker", question=question.text, query=" / ".join(action.queries), documents=pages)
        reply.call.ranked = accept(reply, read_order(reply.text, len(hits), self.keep))
        selected = tuple(hits[number] for number in reply.call.ranked)
        return dataclasses.replace(
            seen, text=io.protocol.observation([selected], self.observation_words), hits=selected
        )
