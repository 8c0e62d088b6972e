"""The monolithic agent: one model, one context, search and answer interleaved (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO
from searchgym.records import Invalid, Question


class Monolithic:
    """Generates until an action is complete, takes it, shows the observation, and goes on in the same context.

    Both action grammars work; the environment's is used. Deviations from Search-R1's released code: responses are never
    cut and encoded again; the score reads the action alone, never the prompt; there is no last generation with search
    switched off, since the last turn of the environment's budget is that generation.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        chat = io.open("searcher", question=question.text, instructions=io.protocol.instructions())
        while True:
            reply = await chat.generate()
            action = io.protocol.parse(reply.text)
            reply.call.legal = not isinstance(action, Invalid)
            observation = await io.step(action)
            if observation.done:
                return
            chat.observe(observation.text)
