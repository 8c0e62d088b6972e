"""Search in the policy's memory: the model that searches also writes the pages."""

from __future__ import annotations

import re
from typing import Final

from searchgym.agents.base import Chat, EpisodeIO, Observation
from searchgym.agents.monolithic import Monolithic
from searchgym.protocol import split_thoughts
from searchgym.records import Action, Question, Search

ENGINE: Final = "engine"
"""Role in which the policy writes pages."""
CLOSE: Final = "</information>"
_TAG: Final = re.compile(r"</?(\w+)>")


class SelfSearch(Monolithic):
    """Agent with one model in one context that also writes the pages of its searches: nothing is retrieved.

    For each query the model continues a fork of its context in the role ``engine``; its text there becomes the search's
    page, marked as simulated. Pages are observations, whose tokens are not trained on.

    Source: SSRL, arXiv 2508.10874, and its released code, in which the policy writes the information within its own
    response, and these tokens are masked. Deviation: here a prompt in a fork requests the page, and the page is
    inserted in the environment's tags, so that real pages can replace it in evaluation (agent ``search-r1``).
    """

    async def act(self, action: Action, chat: Chat, io: EpisodeIO, question: Question) -> Observation:
        """Executes an action in the environment; a search gets pages written by the model."""
        if not isinstance(action, Search) or io.turns_left <= 1:
            return await io.step(action)
        pages = []
        for query in action.queries:
            reply = await chat.fork(ENGINE, query=query).generate(prefix=True)
            pages.append(written(reply.text))
        return await io.step(action, pages)


def written(text: str) -> str:
    """Returns the page in the model's text as an engine: the part before its closing tag, without tags."""
    return _TAG.sub(" ", split_thoughts(text)[1].partition(CLOSE)[0]).strip()
