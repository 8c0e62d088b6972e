"""SSRL's reward for the form of an episode's own text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from searchgym.records import Episode
from searchgym.train.algorithms.samples import sequences_of
from searchgym.train.credit.context import CreditContext, Rows

MOST_THOUGHTS: Final = 8
"""Number of thoughts above which the form scores 0."""
_TAG: Final = re.compile(r"</?(\w+)>")
_KNOWN: Final = frozenset({"think", "search", "information", "answer"})
_EMPTY: Final = re.compile(r"<(\w+)>\s*</\1>")
_QUERY: Final = re.compile(r"<search>(.*?)</search>", re.DOTALL)


def ssrl_form(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards the form of an episode's own text, in [0, 1], on the last call of each sequence.

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
    """Returns the score of the form of an episode's own texts, in order; see `ssrl_form`."""
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
