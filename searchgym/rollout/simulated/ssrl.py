"""Search in the policy's own memory: the model that asks also writes what a search would find."""

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
    """Agent with one model in one context, which writes the pages of its own searches: nothing is retrieved.

    For each query the model continues its context in the role ``engine``, in a fork; what it writes there comes back as
    the search's page, marked as simulated. As observations, these tokens are not trained on.

    Source: SSRL, arXiv 2508.10874, and its released code, in which the policy writes the information within its own
    response, and these tokens are masked. Deviation: it is asked for them by a prompt in a fork, and the page comes
    back in the environment's tags, so that real pages can take their place in evaluation (agent ``search-r1``).
    """

    async def act(self, action: Action, chat: Chat, io: EpisodeIO, question: Question) -> Observation:
        """Takes an action in the environment, a search with pages of the model's own."""
        if not isinstance(action, Search) or io.turns_left <= 1:
            return await io.step(action)
        pages = []
        for query in action.queries:
            reply = await chat.fork(ENGINE, query=query).generate(prefix=True)
            pages.append(written(reply.text))
        return await io.step(action, pages)


def written(text: str) -> str:
    """Returns the page in what the model wrote as an engine: up to its closing tag, without tags."""
    return _TAG.sub(" ", split_thoughts(text)[1].partition(CLOSE)[0]).strip()
