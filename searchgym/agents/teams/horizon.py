"""Long horizons: an agent that searches for dozens of turns in short contexts (ASearcher, arXiv 2508.07976)."""

from __future__ import annotations

from collections import deque
from typing import Final

from searchgym.agents.base import EpisodeIO, accept
from searchgym.agents.parsing import LINE, NONE, Parsed, only_tag, without_thoughts, words
from searchgym.records import Answer, Invalid, Question
from searchgym.text import cut_words

MAX_WORD_CHARACTERS: Final = 20
"""Maximum mean number of characters per allowed word, since one word may be as long as a page."""


def read_memory(text: str, before: str, most: int) -> Parsed[str]:
    """Parses a memory, ``<memory>..</memory>``.

    Legal: this tag with 1 to `most` words, of 20 characters each on average at most, and nothing else. Fallback: the
        previous memory.

    Args:
        text: Output of the summariser.
        before: Previous memory.
        most: Maximum number of words.
    """
    memory = only_tag(without_thoughts(text), "memory")
    if not memory or words(memory) > most or len(memory) > most * MAX_WORD_CHARACTERS:
        return Parsed(before, False)
    return Parsed(memory, True)


class ASearcher:
    """Agent that acts from a memory of bounded length, which it rewrites after every observation (ASearcher).

    The searcher sees the question, the memory, its last actions and the number of actions left, and writes an action of
    the environment's grammar; so it opens pages if the environment allows it. The summariser sees the observation and
    rewrites the memory. Each call has a separate context, whose length does not depend on the turn.

    Source: the paper's agent searches and reads pages for 40 turns and more, and one model reasons and summarises, both
    trained. Deviation: there summaries of pages are appended to one conversation; the memory that replaces it is ours.

    Args:
        memory_words: Maximum number of words of the memory.
        page_words: Maximum number of words of an observation that the summariser sees.
        recent: Number of last actions that the searcher sees.
    """

    def __init__(self, memory_words: int = 150, page_words: int = 400, recent: int = 5) -> None:
        self.memory_words, self.page_words, self.recent = memory_words, page_words, recent

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        memory, recent = NONE, deque[str](maxlen=self.recent)
        while True:
            reply = await io.generate(
                "searcher",
                question=question.text,
                memory=memory,
                recent="\n".join(recent) or NONE,
                left=str(io.turns_left),
                instructions=io.protocol.instructions(),
            )
            action = io.protocol.parse(reply.text)
            reply.call.legal = not isinstance(action, Invalid)
            if isinstance(action, Answer):
                reply.call.answer = action.text
            seen = await io.step(action)
            if seen.done:
                return
            if isinstance(action, Invalid):
                recent.append(f"not understood: {action.reason}"[:LINE])
                continue
            recent.append(" ".join(io.protocol.write(action).split())[:LINE])
            page = cut_words(seen.text.strip()[: self.page_words * MAX_WORD_CHARACTERS], self.page_words)
            fields = {"question": question.text, "memory": memory, "action": recent[-1], "observation": page}
            reply = await io.generate("summariser", **fields)
            memory = accept(reply, read_memory(reply.text, memory, self.memory_words))
