"""The monolithic agent: one model, one context, search and answer interleaved (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from searchgym.agents.base import Chat, EpisodeIO, Observation
from searchgym.records import Action, Answer, Invalid, Question, Search


class Monolithic:
    """Agent with one model in one context: it generates an action, executes it, appends the observation, and repeats.

    Actions are parsed by the environment's grammar. Deviations from Search-R1's released code: responses are never cut
    and re-encoded; the score depends only on the action, never on the prompt; there is no extra final generation
    with search disabled, since the last turn of the environment's budget has that function.

    Args:
        prefix_answers: Number of trial answers that, in training, the model also writes before the first and after
            each search (PRAISE, arXiv 2604.03675, writes one), as role ``prefix``, in forks that do not affect the
            episode.
        role: Name of the model's role.
    """

    def __init__(self, prefix_answers: int = 0, role: str = "searcher") -> None:
        self.prefix_answers, self.role = prefix_answers, role

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        chat = io.open(self.role, question=question.text, instructions=io.protocol.instructions())
        await self._trial_answers(chat, io)
        while True:
            reply = await chat.generate()
            action = self.read(reply.text, io)
            reply.call.legal = not isinstance(action, Invalid)
            if isinstance(action, Answer):
                reply.call.answer = action.text
            observation = await self.act(action, chat, io, question)
            if observation.done:
                return
            chat.observe(observation.text)
            if isinstance(action, Search):
                await self._trial_answers(chat, io)

    def read(self, text: str, io: EpisodeIO) -> Action:
        """Parses a response into an action."""
        return io.protocol.parse(text)

    async def act(self, action: Action, chat: Chat, io: EpisodeIO, question: Question) -> Observation:
        """Takes an action in the environment and appends the observation; subclasses may override it."""
        return await io.step(action)

    async def _trial_answers(self, chat: Chat, io: EpisodeIO) -> None:
        """Samples trial answers, each in a fork of the context, if `prefix_answers` is set."""
        for _ in range(self.prefix_answers if io.training else 0):
            reply = await chat.fork("prefix").generate(prefix=True)
            action = io.protocol.parse(reply.text)
            reply.call.legal = isinstance(action, Answer)
            reply.call.answer = action.text if isinstance(action, Answer) else ""
