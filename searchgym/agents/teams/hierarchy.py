"""HierSearch: a planner over agents that each search one source, local or web (repository plageon/HierSearch)."""

from __future__ import annotations

import re
from typing import Final

from searchgym.agents.base import EpisodeIO, accept, ask, documents
from searchgym.agents.jade import read_answer
from searchgym.agents.mask import read_summary, search_until_end
from searchgym.agents.parsing import NONE, Parsed, first_line, only_tag, without_thoughts, words
from searchgym.records import Answer, Question

LOCAL: Final = "local"
"""Role that searches the environment's main retriever."""
WEB: Final = "web"
"""Role that searches the additional retriever; also that retriever's default name."""
TOOLS: Final = {
    "local_search_agent": (LOCAL,),
    "web_search_agent": (WEB,),
    "all_search_agent": (LOCAL, WEB),
}
"""Tag of a planner's tool to the roles that it calls."""
ANSWER: Final = "answer"
"""Tag that ends the episode."""
TAGS: Final = re.compile(rf"</?(?:{'|'.join((*TOOLS, ANSWER))})>")
"""Matches an opening or closing tag of a step."""
MOST_WORDS: Final = 100
"""Maximum number of words of a sub-question or an answer."""


def read_step(text: str) -> Parsed[tuple[str, str]]:
    """Parses a planner's step; the value is the tag and its content.

    Legal: exactly one of ``<local_search_agent>``, ``<web_search_agent>``, ``<all_search_agent>`` or ``<answer>`` with
    1 to 100 words, without other text or nested tags. Fallback: the first line as the answer.
    """
    text = without_thoughts(text)
    for tag in (*TOOLS, ANSWER):
        body = only_tag(text, tag)
        if body and words(body) <= MOST_WORDS and not TAGS.search(body):
            return Parsed((tag, body), True)
    return Parsed((ANSWER, first_line(text)), False)


class HierSearch:
    """Agent whose planner sends sub-questions to a local agent, a web agent, or both, and answers (HierSearch).

    The local agent searches the environment's main retriever, the web agent the additional one from the environment's
    option `retrievers`; without that, both search the main one. Each searches until it ends or has made `searches`
    searches (as M-ASK's search role, `read_search`), a reader answers the sub-question from the pages (`read_answer`),
    and a refiner extracts the evidence about it (`read_summary`): the planner sees answers and evidence, never a page.
    The note ``tools`` of an episode is the share of the planner's three tools that it used.

    Deviations from the released code: each step starts a new context instead of continuing one conversation;
    the local agent has one kind of search (there also by graph and by neighbouring passages), the web agent opens no
    pages; the refiner is a model (there a scorer and a language model).

    Args:
        web: Name of the additional retriever.
        steps: Maximum number of calls of the planner.
        searches: Maximum number of searches for a sub-question.
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, web: str = WEB, steps: int = 8, searches: int = 2, passage_words: int = 100) -> None:
        self.web, self.steps, self.searches, self.passage_words = web, steps, searches, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        history, used, answer = list[str](), set[str](), ""
        for step in range(self.steps):
            fields = {"history": "\n".join(history) or NONE, "left": str(io.turns_left)}
            reply = await io.generate("planner", question=question.text, **fields)
            tag, text = accept(reply, read_step(reply.text))
            if tag == ANSWER:
                reply.call.answer = answer = text
                break
            if io.turns_left <= 1 or step == self.steps - 1:  # a result could no longer be used
                break
            used.add(tag)
            for role in TOOLS[tag]:
                history.append(await self._explore(role, text, io))
                if not io.turns_left:  # a retriever failed
                    return
        io.note("tools", len(used) / len(TOOLS))
        await io.step(Answer(answer))

    async def _explore(self, role: str, sub_question: str, io: EpisodeIO) -> str:
        """Lets a lower-level agent work on a sub-question; returns the resulting line of the history."""
        source = self.web if role == WEB and self.web in io.protocol.sources else ""
        searched = await search_until_end(role, sub_question, self.searches, self.passage_words, io, source)
        if searched is None:
            return ""
        pages = documents(searched[0], self.passage_words) or NONE
        answer = await ask(io, "reader", read_answer, question=sub_question, documents=pages)
        evidence = await ask(io, "refiner", read_summary, query=sub_question, documents=pages)
        return f"{role} Q: {_line(sub_question)} | A: {_line(answer)} | Evidence: {_line(evidence)}"


def _line(text: str) -> str:
    """Returns a text as one line of bounded length."""
    return " ".join(text.split())[:1000]
