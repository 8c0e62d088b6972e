"""A scripted researcher for long documents: it finds each gold passage, cites it, and answers from what it has read."""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO
from searchgym.agents.scripted import gold_answer
from searchgym.records import Answer, Cite, Find, Hit, Open, Question, Search, title_key
from searchgym.scoring.citations import GoldSpan, gold_spans_of
from searchgym.text import cut_words, holds

FIND_WORDS = 16
"""Maximum number of words by which a gold passage is found in its page; documents repeat shorter phrases."""


class ResearchOracle:
    """Agent that knows the gold passages, and submits the gold answer only if it has read all of them.

    For each passage it searches for the page's title, opens the page, finds the passage and cites it, as far as the
    environment allows these actions. So its score is what a perfect reader can reach: below 1.0, searches fail, or the
    turns or tokens do not suffice.

    Args:
        retries: Number of times that a search is repeated if its hits lack the page.
        opens: Whether the agent opens pages; otherwise it reads only the hits.
    """

    def __init__(self, retries: int = 2, opens: bool = True) -> None:
        self.retries, self.opens = retries, opens

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        complete = all([await self._read(span, io) for span in gold_spans_of(question)])
        await io.step(gold_answer(question) if complete else Answer(""))

    async def _read(self, span: GoldSpan, io: EpisodeIO) -> bool:
        """Returns whether the agent has read a gold passage; one turn is reserved for the answer."""
        hit, text = await self._search(span, io)
        if not self.opens or not io.protocol.browse:
            return hit is not None and (not span.text or holds(text, span.text))
        if hit is None or io.turns_left <= 1:
            return False
        seen = await io.step(Open(hit.passage.id))
        text = seen.text
        if span.text and io.protocol.find and io.turns_left > 1:
            text += (await io.step(Find(cut_words(span.text, FIND_WORDS)))).text
        if span.text and io.protocol.cite and io.turns_left > 1:
            await io.step(Cite(hit.passage.id, span.text))
        return not span.text or holds(text, span.text)

    async def _search(self, span: GoldSpan, io: EpisodeIO) -> tuple[Hit | None, str]:
        """Searches for the page of a gold passage; returns its first hit, if any, and the text of all hits.

        The query is the page's title, or the passage itself if only hits are read.
        """
        text, key = "", title_key(span.title)
        query = span.title if self.opens else span.text or span.title
        for _ in range(self.retries + 1):
            if io.turns_left <= 1:
                break
            seen = await io.step(Search((query,)))
            text += seen.text
            hit = next((hit for hit in seen.hits if title_key(hit.passage.title) == key), None)
            if hit is not None:
                return hit, text
        return None, text
