"""Search-R2 (arXiv 2602.03647): the same model names the first flawed turn of an episode, which goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from searchgym.agents.base import Agent, EpisodeIO, ask, documents
from searchgym.agents.parsing import Parsed, only_tag, without_thoughts
from searchgym.errors import UsageError
from searchgym.named import load_object
from searchgym.records import Episode, Question

REFINER: Final = "refiner"
"""Role that names the first flawed turn."""


def read_turn(text: str, turns: int) -> Parsed[int]:
    """Parses ``<answer>k</answer>``, the number of the first flawed turn, or 0.

    Legal: this tag alone, with a number from 0 to `turns`. Fallback: 0.
    """
    body = (only_tag(without_thoughts(text), "answer") or "").strip()
    number = int(body) if body.isdecimal() and len(body) < 4 else -1
    return Parsed(number, True) if 0 <= number <= turns else Parsed(0, False)


class Refined:
    """Agent that wraps another one and, in training, revises its episodes: a `Reviser`.

    After an episode the role ``refiner`` reads its turns, in a context of its own, and names the first flawed one. The
    turns before it stay, the agent goes on from there with other random numbers, and the new episode counts. The
    refiner's call is part of it: both roles learn from its reward. Each episode is revised at most once.

    Source: arXiv 2602.03647, sections 3.2 and 3.3, by notes. Deviation: there a turn is accepted if it is likelier than
    0; here the refiner's output is sampled, and with `least` 0.5 it is certainly likelier. Its judge's reward of
    searches is the credit term ``density``.

    Args:
        agent: Workflow that searches and answers, as ``module:Class``.
        options: Keyword arguments for that class.
        least: Least probability of the refiner's output for an episode to be revised.
        always: Whether to revise outside training too.
        passage_words: Maximum number of words that the refiner sees of each page.
    """

    def __init__(
        self,
        agent: str,
        options: Mapping[str, Any] | None = None,
        least: float = 0.0,
        always: bool = False,
        passage_words: int = 60,
    ) -> None:
        if not 0 <= least < 1:
            raise UsageError(f"least is {least}: expected a probability, 0 or more and below 1")
        self.agent: Agent = load_object(agent)(**(options or {}))
        self.least, self.always, self.passage_words = least, always, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await self.agent.run(question, io)

    async def flawed_turn(self, question: Question, episode: Episode, io: EpisodeIO) -> int:
        """Returns the number of the first flawed turn of an episode, or 0; see `Reviser`."""
        if not (io.training or self.always):
            return 0
        trace = self.trace(episode)
        return await ask(io, REFINER, lambda text: read_turn(text, episode.turns), question=question.text, trace=trace)

    def trace(self, episode: Episode) -> str:
        """Returns an episode's turns as text: what the agent wrote, and the pages that its searches found."""
        lines = []
        for turn in range(1, episode.turns + 1):
            written = " ".join(call.text.strip() for call in episode.calls if call.turn == turn and not call.prefix)
            lines.append(f"Turn {turn}: {written}")
            hits = [hit for search in episode.searches if search.turn == turn for hit in search.hits]
            lines += [documents(hits, self.passage_words)] if hits else []
        return "\n".join(lines)
