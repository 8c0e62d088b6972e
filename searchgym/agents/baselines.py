"""Baseline workflows that need no training: retrieve-then-read (`Rag`) and retrieval between thoughts (`IRCoT`)."""

from __future__ import annotations

import re
from typing import Final

from searchgym.agents.base import EpisodeIO, accept, documents, search_once
from searchgym.agents.jade import MOST_ANSWER, read_answer
from searchgym.agents.parsing import NONE, first_line
from searchgym.records import Answer, Hit, Question, Search

CONCLUSION: Final = re.compile(r"\banswer is:?\s*(.+)", re.IGNORECASE)
"""Matches the statement of the answer in a thought, which ends the reasoning."""


class Rag:
    """Agent that searches for the question once and answers from the pages.

    Args:
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, passage_words: int = 100) -> None:
        self.passage_words = passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await answer_from(question, await search_once(question.text, io), self.passage_words, io)


class IRCoT:
    """Agent that searches for the question and then for each sentence of its reasoning, and answers from all pages.

    Source: IRCoT, arXiv 2212.10509, section 3: a thought that contains "answer is" ends the loop. Deviation: no worked
    examples in the prompts.

    Args:
        max_steps: Maximum number of thoughts.
        max_passages: Maximum number of pages kept; the earliest are kept.
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, max_steps: int = 4, max_passages: int = 15, passage_words: int = 100) -> None:
        self.max_steps, self.max_passages, self.passage_words = max_steps, max_passages, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        pages: dict[str, Hit] = {}
        thoughts: list[str] = []
        query = question.text
        while io.turns_left > 1:
            for hit in (await io.step(Search((query,)))).hits:
                pages.setdefault(hit.passage.id, hit)
            pages_shown = tuple(pages.values())[: self.max_passages]
            if len(thoughts) == self.max_steps:
                break
            fields = {
                "documents": documents(pages_shown, self.passage_words) or NONE,
                "thoughts": " ".join(thoughts) or NONE,
            }
            reply = await io.generate("reasoner", question=question.text, **fields)
            thought = first_line(reply.text)
            reply.call.legal = bool(thought)
            thoughts.append(thought)
            if not thought or CONCLUSION.search(thought):
                break
            query = thought
        await answer_from(question, tuple(pages.values())[: self.max_passages], self.passage_words, io)


async def answer_from(
    question: Question, hits: tuple[Hit, ...], passage_words: int, io: EpisodeIO, most: int = MOST_ANSWER
) -> None:
    """Submits the generator's answer to a question from pages; one of more than `most` words is not legal."""
    reply = await io.generate("generator", question=question.text, documents=documents(hits, passage_words) or NONE)
    reply.call.answer = accept(reply, read_answer(reply.text, most))
    await io.step(Answer(reply.call.answer))
