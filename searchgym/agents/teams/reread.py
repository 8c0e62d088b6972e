"""Second answers from the pages alone: do an agent's searches suffice for its answer? (GRPO-CSV, arXiv 2511.05489)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from searchgym.agents.base import Agent, EpisodeIO, Observation, accept, documents
from searchgym.agents.teams.knowing import read_known
from searchgym.errors import UsageError
from searchgym.named import load_object
from searchgym.records import Action, Answer, Call, Episode, Hit, Question

READER: Final = "reader"
"""Role that gives the second answer."""


def second_answer(episode: Episode) -> Call | None:
    """Returns the call of the role ``reader`` with an episode's second answer; None if it has none."""
    return next((call for call in reversed(episode.calls) if call.prefix and call.role == READER), None)


class Reread:
    """Agent that wraps another one: before its answer counts, the role ``reader`` answers from the retrieved pages.

    The reader sees the question and the pages in the order in which they were first retrieved, in a context of its own,
    without the episode; parts of pages that the agent opened are not among them. Its answer is a trial answer
    (`Call.prefix`) that does not affect the episode; without pages it is not called. The credit term ``completeness``
    and the score of that name compare the two answers.

    Args:
        agent: Workflow that searches and answers, as ``module:Class``.
        options: Keyword arguments for that class.
        passage_words: Maximum number of words shown of each page.
        words: Maximum number of words of all pages; further pages are left out, and the note ``pages_left_out`` counts
            them.
    """

    def __init__(
        self, agent: str, options: Mapping[str, Any] | None = None, passage_words: int = 150, words: int = 1500
    ) -> None:
        if passage_words < 1 or words < passage_words:
            raise UsageError(
                f"passage_words is {passage_words}, words is {words}: expected 1 <= passage_words <= words"
            )
        self.agent: Agent = load_object(agent)(**(options or {}))
        self.passage_words, self.words = passage_words, words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await self.agent.run(question, cast("EpisodeIO", _WithReader(question, io, self)))

    async def answer_from_pages(self, question: Question, hits: Sequence[Hit], io: EpisodeIO) -> None:
        """Lets the reader answer from pages, if there are any."""
        pages, visible, left = dict[str, Hit](), list[Hit](), self.words
        for hit in hits:
            pages.setdefault(hit.passage.id, hit)
        for hit in pages.values():
            left -= min(len(hit.passage.text.split()), self.passage_words)
            if left < 0:
                break
            visible.append(hit)
        if not visible:
            return
        io.note("pages_left_out", len(pages) - len(visible))
        fields = {"question": question.text, "documents": documents(visible, self.passage_words)}
        reply = await io.open(READER, **fields).generate(prefix=True)
        reply.call.answer = accept(reply, read_known(reply.text))


class _WithReader:
    """Interface to an episode that lets the reader answer right before the agent's own answer."""

    def __init__(self, question: Question, io: EpisodeIO, agent: Reread) -> None:
        self._question, self._io, self._agent = question, io, agent
        self._hits: list[Hit] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    async def step(self, action: Action, pages: Sequence[str] | None = None) -> Observation:
        """Executes one action; see `EpisodeIO.step`."""
        if isinstance(action, Answer):
            await self._agent.answer_from_pages(self._question, self._hits, self._io)
        seen = await self._io.step(action, pages)
        self._hits += seen.hits
        return seen
