"""Agents that search only for what they do not know: IKEA (arXiv 2505.07596) and AdaSearch (arXiv 2512.16883)."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from searchgym.agents.base import EpisodeIO, accept, ask
from searchgym.agents.jade import read_answer
from searchgym.agents.monolithic import Monolithic
from searchgym.agents.parsing import Parsed, first_line, only_tag, without_thoughts
from searchgym.records import Answer, Question

SEARCH: Final = "search"
KNOW: Final = "know"
"""Decisions of AdaSearch's decider."""
KNOWER: Final = "knower"
"""Role that answers from memory."""


def read_decision(text: str) -> Parsed[bool]:
    """Parses ``<decision>search</decision>`` or ``<decision>know</decision>``; the value is whether to search.

    Legal: exactly one of these forms. Fallback: search.
    """
    body = only_tag(without_thoughts(text), "decision")
    return Parsed(body != KNOW, body in (SEARCH, KNOW))


def read_known(text: str) -> Parsed[str]:
    """Parses ``<answer>..</answer>``, the output of a model that answers without seeing a page.

    Legal: this tag alone, with at most 40 words. If the output is not legal, its first line is the answer.
    """
    parsed = read_answer(text)
    return parsed if parsed.legal else Parsed(first_line(without_thoughts(text)), False)


async def answer_from_memory(question: Question, io: EpisodeIO, trial: bool = False) -> str:
    """Lets the role ``knower`` answer a question without any page; returns the answer.

    Args:
        question: The question.
        io: The episode.
        trial: Whether the answer is only a trial (`Call.prefix`) that does not affect the episode.
    """
    reply = await io.open(KNOWER, question=question.text).generate(prefix=trial)
    reply.call.answer = accept(reply, read_known(reply.text))
    return reply.call.answer


class IkeaAgent(Monolithic):
    """Monolithic agent whose prompt asks it to search only for what it does not know (IKEA).

    Outside training, it first samples a trial answer without pages, as role ``knower``, which does not affect the
    episode: the score ``awareness`` compares its searches with its knowledge. The credit term ``ikea`` is its reward.

    Args:
        probe: Whether to give this trial answer.
        in_training: Whether to give it in training too, as the credit term ``boundary`` needs it.
    """

    def __init__(self, probe: bool = True, in_training: bool = False) -> None:
        super().__init__()
        self.probe, self.in_training = probe, in_training

    @override
    async def run(self, question: Question, io: EpisodeIO) -> None:
        if self.probe and (self.in_training or not io.training):
            await answer_from_memory(question, io, trial=True)
        await super().run(question, io)


class AdaSearch(Monolithic):
    """Agent that first decides whether to search, then answers from memory or like the monolithic agent (AdaSearch).

    A trial answer without pages, as role ``knower``, comes before the decision and does not affect it: the credit term
    ``decision`` and the score ``awareness`` compare the decision with it. Deviation: the paper trains the two ways of
    answering first and the decision after them; here one recipe trains both at once, or two recipes train one after
    the other.
    """

    @override
    async def run(self, question: Question, io: EpisodeIO) -> None:
        await answer_from_memory(question, io, trial=True)
        if await ask(io, "decider", read_decision, question=question.text):
            await super().run(question, io)
        else:
            await io.step(Answer(await answer_from_memory(question, io)))
