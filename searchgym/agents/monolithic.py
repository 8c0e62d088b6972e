"""The monolithic agent: one model, one context, search and answer interleaved (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from searchgym.agents.base import Chat, EpisodeIO
from searchgym.records import Answer, Invalid, Question, Search


class Monolithic:
    """Generates until an action is complete, takes it, shows the observation, and goes on in the same context.

    Both action grammars work; the environment's is used. Deviations from Search-R1's released code: responses are never
    cut and encoded again; the score reads the action alone, never the prompt; there is no last generation with search
    switched off, since the last turn of the environment's budget is that generation.

    Args:
        prefix_answers: In training, have the model answer at once from what is known so far, before the first search
            and after each (PRAISE, arXiv 2604.03675): role ``prefix``, in forks of which the episode knows nothing.
    """

    def __init__(self, prefix_answers: bool = False) -> None:
        self.prefix_answers = prefix_answers

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        chat = io.open("searcher", question=question.text, instructions=io.protocol.instructions())
        await self._answer_now(chat, io)
        while True:
            reply = await chat.generate()
            action = io.protocol.parse(reply.text)
            reply.call.legal = not isinstance(action, Invalid)
            if isinstance(action, Answer):
                reply.call.answer = action.text
            observation = await io.step(action)
            if observation.done:
                return
            chat.observe(observation.text)
            if isinstance(action, Search):
                await self._answer_now(chat, io)

    async def _answer_now(self, chat: Chat, io: EpisodeIO) -> None:
        """Asks for a prefix answer, if there are to be any."""
        if not (self.prefix_answers and io.training):
            return
        reply = await chat.fork("prefix").generate(prefix=True)
        action = io.protocol.parse(reply.text)
        reply.call.legal = isinstance(action, Answer)
        reply.call.answer = action.text if isinstance(action, Answer) else ""
