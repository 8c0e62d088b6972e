"""Workflows that measure one part of an agent alone: reading, knowing without searching, and answering after searches.

None is meant to be trained. Each asks its model once, so that the gap between two of them has one cause.
"""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO, Reply, documents, search_once
from searchgym.agents.parsing import NONE, first_line
from searchgym.errors import UsageError
from searchgym.protocol import Protocol, Shown
from searchgym.records import Answer, Question, Search
from searchgym.text import base_title

ANSWER = "<answer>"
"""Beginning of an answer with tags."""
SLOT = "slotofaquery"
"""Place of a query in an action."""


class Reader:
    """Agent that answers by the first line of its model's reply, from the pages of one search for the question.

    Where searches return the gold pages (`searchgym.eval.ceilings`), this is reading alone.

    Args:
        searches: Whether it searches; without pages its model must know the answer (closed book).
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, searches: bool = True, passage_words: int = 100) -> None:
        self.searches, self.passage_words = searches, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        fields = {"question": question.text}
        if self.searches:
            hits = await search_once(question.text, io)
            fields["documents"] = documents(hits, self.passage_words, "Doc ") or NONE
        await _answer(await io.generate("reader", **fields), io)


class OracleQueries:
    """Agent for which an oracle searches: its model sees the gold titles as its own searches, and gives the answer.

    The context is the monolithic agent's, so that the gap to that agent is what its own searches cost.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode.

        Raises:
            UsageError: The question names no gold pages.
        """
        if question.gold_titles is None:
            raise UsageError(f"oracle-queries needs gold titles, question {question.id!r} names none")
        chat = io.open("searcher", question=question.text, instructions=io.protocol.instructions())
        for title in question.gold_titles:
            if io.turns_left <= 1:
                break
            query = base_title(title)
            seen = await io.step(Search((query,)))
            chat.observe(_written(query, io.protocol))
            chat.observe(seen.text)
        chat.observe(ANSWER, trusted=True)
        await _answer(await chat.generate(), io)


def _written(query: str, grammar: Protocol) -> Shown:
    """Returns a search as a model writes it; the query is a title of the question's, and its tags are no tags."""
    if grammar.name == "tags":
        return Shown.of(("<search> ", True), (query, False), ("</search>", True))
    before, after = grammar.write(Search((SLOT,))).split(SLOT)
    whole = grammar.write(Search((query,)))
    return Shown.of((before, True), (whole[len(before) : len(whole) - len(after)], False), (after, True))


async def _answer(reply: Reply, io: EpisodeIO) -> None:
    """Gives the first line of a reply as the answer, without tags; a reply without one is not legal."""
    answer = first_line(reply.text.split("</answer>")[0])
    reply.call.legal, reply.call.answer = bool(answer), answer
    await io.step(Answer(answer))
