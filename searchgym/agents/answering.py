"""Workflows that isolate one ability of an agent: reading, answering from memory, or answering after given searches.

None is meant to be trained. Each calls its model once, so that the gap between two of them has one cause.
"""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO, Reply, documents, search_once
from searchgym.agents.parsing import NONE, first_line
from searchgym.errors import UsageError
from searchgym.protocol import Protocol, Shown
from searchgym.records import Answer, Question, Search
from searchgym.text import base_title

ANSWER = "<answer>"
"""Opening tag of an answer."""
SLOT = "slotofaquery"
"""Placeholder for the query in a written action."""


class Reader:
    """Agent that answers with the first line of its model's reply, after one search for the question, or none.

    If searches return the gold pages (`searchgym.eval.ceilings`), it measures only reading.

    Args:
        searches: Whether the agent searches; otherwise its model must answer from memory (closed book).
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
    """Agent whose searches an oracle makes, one per gold title; its model sees them as its own and answers.

    The context is that of the monolithic agent, so the gap to that agent is due to its own searches.
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
    """Returns a search as a model would write it; tags inside the query, a gold title, stay plain text."""
    if grammar.name == "tags":
        return Shown.of(("<search> ", True), (query, False), ("</search>", True))
    before, after = grammar.write(Search((SLOT,))).split(SLOT)
    whole = grammar.write(Search((query,)))
    return Shown.of((before, True), (whole[len(before) : len(whole) - len(after)], False), (after, True))


async def _answer(reply: Reply, io: EpisodeIO) -> None:
    """Submits the first line of a reply, without tags, as the answer; a reply without such a line is not legal."""
    answer = first_line(reply.text.split("</answer>")[0])
    reply.call.legal, reply.call.answer = bool(answer), answer
    await io.step(Answer(answer))
