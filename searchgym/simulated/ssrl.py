"""Search in the policy's own memory: the model that asks also writes what a search would find."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from searchgym.agents.base import Chat, EpisodeIO, Observation
from searchgym.agents.monolithic import Monolithic
from searchgym.records import Action, Episode, Question, Search
from searchgym.train.algorithms.samples import sequences_of
from searchgym.train.credit.context import CreditContext, Rows

ENGINE: Final = "engine"
"""Role in which the policy writes pages."""
CLOSE: Final = "</information>"
MOST_THOUGHTS: Final = 8
"""Number of thoughts above which the form scores 0."""
_TAG: Final = re.compile(r"</?(\w+)>")
_KNOWN: Final = frozenset({"think", "search", "information", "answer"})
_EMPTY: Final = re.compile(r"<(\w+)>\s*</\1>")
_QUERY: Final = re.compile(r"<search>(.*?)</search>", re.DOTALL)


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
    return _TAG.sub(" ", text.partition(CLOSE)[0]).strip()


def form(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Credit term: rewards the form of an episode's own text, in [0, 1], on the last call of each sequence.

    With a thoughts and b = searches + 1 it is ``min(a / 2, 1) min(a, b) / max(a, b)``; 0 if the text does not begin
    with a thought and end with an answer, has other tags, an empty one, a query of several lines, or more than 8
    thoughts.

    Source: SSRL, arXiv 2508.10874, and its released code (manager ``naive.py``), whose reward is 0.9 EM + 0.1 of this.
    """
    rows = []
    for episode in group:
        rewards = [0.0] * len(episode.calls)
        for calls in sequences_of(episode):
            rewards[calls[-1]] = form_of([episode.calls[index].text for index in calls])
        rows.append(rewards)
    return rows


def form_of(texts: Sequence[str]) -> float:
    """Returns the score of the form of an episode's own texts, in order; see `form`."""
    text = "".join(texts).strip()
    thoughts, searches = text.count("<think>"), text.count("<search>")
    faults = (
        not text.startswith("<think>") or not text.endswith("</answer>"),
        any(name not in _KNOWN for name in _TAG.findall(text)),
        _EMPTY.search(text) is not None,
        any("\n" in query.strip() for query in _QUERY.findall(text)),
        not 1 <= thoughts <= MOST_THOUGHTS,
    )
    if any(faults):
        return 0.0
    pair = (thoughts, searches + 1)
    return min(thoughts / 2, 1.0) * min(pair) / max(pair)
