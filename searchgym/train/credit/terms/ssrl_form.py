"""Credit term ``ssrl-form``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term

MOST_THOUGHTS: Final = 8
"""Number of thoughts above which the form scores 0."""
_TAG: Final = re.compile(r"<([^<>]+)>")
_BLOCK: Final = re.compile(r"<(think|search|answer)>(.*?)</\1>", re.DOTALL)
PLACEHOLDERS: Final = {"think": "your thoughts", "search": "your query", "answer": "your answer"}
"""Placeholders between the tags in SSRL's prompts; our prompt has the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SsrlForm(Term):
    """Rewards the form of the model's text in an episode, in [0, 1], at the last call of each sequence.

    With a thoughts and b = searches + 1 the reward is ``min(a / 2, 1) min(a, b) / max(a, b)``. It is 0 if the text does
    not begin with a thought or does not end with its only answer, or if it has other tags, tags that are nested or not
    closed, an empty tag, a tag with a prompt's placeholder (``your query``), a query of several lines, or more than 8
    thoughts.

    Source: SSRL, arXiv 2508.10874, and its released code (manager ``naive.py``), whose reward is 0.9 EM + 0.1 of this.
    There the model's text contains pages after each search; here the environment returns pages, and a tag for pages
    counts as another tag. Ours is stricter: there tags may be nested.
    """

    rewards_one: ClassVar = "episode"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        return at_ends(episode, lambda calls: form_of([episode.calls[index].text for index in calls]))


def form_of(texts: Sequence[str]) -> float:
    """Returns the score for the form of the model's texts in an episode, in order; see `SsrlForm`."""
    text = "".join(texts).strip()
    blocks = _BLOCK.findall(text)
    names = [name for name, _ in blocks]
    thoughts, searches = names.count("think"), names.count("search")
    faults = (
        not text.startswith("<think>") or not text.endswith("</answer>"),
        _TAG.findall(text) != [tag for name in names for tag in (name, f"/{name}")],  # no other tags, none within
        names.count("answer") != 1,
        any(not inside.strip() or PLACEHOLDERS[name] in inside.casefold() for name, inside in blocks),
        any(name == "search" and "\n" in inside.strip() for name, inside in blocks),
        thoughts > MOST_THOUGHTS,
    )
    if any(faults):
        return 0.0
    pair = (thoughts, searches + 1)
    return min(thoughts / 2, 1.0) * min(pair) / max(pair)
