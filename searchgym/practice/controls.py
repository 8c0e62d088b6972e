"""Credit terms that are controls: what a training does when its rewards mean nothing, or when they say everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from searchgym.errors import DataError
from searchgym.records import Episode, title_key
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.context import CreditContext, Rows
from searchgym.train.credit.evidence import acting_calls, new_pages


def permuted(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives each attempt the outcome of an attempt at the same question, drawn without replacement.

    A group keeps its rewards, and so its mean, its deviation and whether it has signal; which attempt earned them is
    chance. What a training by it changes is no effect of the rewards. The draw depends on the group's key alone.

    Use it as ``credit.terms: [searchgym.practice.controls:permuted]``.
    """
    rng = random.Random(f"permuted {group[0].group_uid}")
    rewards = rng.sample([episode.reward for episode in group], len(group))
    return [outcome_rewards(replace(episode, reward=own)) for episode, own in zip(group, rewards, strict=True)]


def oracle(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives 1 to each call that an oracle would approve of, which knows the gold pages and the answer, else 0.

    It approves of a search that finds a gold page while one is missing, and of a right answer once none is missing: a
    lucky guess earns nothing. No method can know as much, so a training by it must do better than one by the outcome.

    Use it as ``credit.terms: [searchgym.practice.controls:oracle]`` with ``advantage.chain: none`` and ``normalise:
    role-turn``. The questions must name their gold pages.

    Raises:
        DataError: A question names no gold page.
    """
    return [_approved(episode, context) for episode in group]


def _approved(episode: Episode, context: CreditContext) -> list[float]:
    question = context.question(episode)
    if not question.gold_titles:
        raise DataError(f"question {question.id!r} names no gold page, and oracle credit needs them")
    rewards, made_by, found = [0.0] * len(episode.calls), acting_calls(episode), new_pages(episode, question)
    for turn, pages in found.items():
        if pages and turn in made_by:
            rewards[made_by[turn]] = 1.0
    whole = sum(found.values()) == len({title_key(title) for title in question.gold_titles})
    if whole and episode.stop_reason == "answer" and made_by:
        rewards[max(made_by.values())] = episode.reward
    return rewards
