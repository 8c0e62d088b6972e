"""Credit terms that are controls: what a training does when its rewards mean nothing, or when they say everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from searchgym.errors import DataError
from searchgym.records import Episode, Question, title_key
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
    lucky guess earns nothing. `oracle_searches` and `oracle_answers` are its two halves, to be weighted.

    Use it as ``credit.terms: [searchgym.practice.controls:oracle]`` with ``advantage.chain: none`` and ``normalise:
    role-turn``. The questions must name their gold pages.

    Raises:
        DataError: A question names no gold page.
    """
    halves = oracle_searches(group, context), oracle_answers(group, context)
    return [np.add(searches, answers).tolist() for searches, answers in zip(*halves, strict=True)]


def oracle_searches(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives 1 to each search that finds a gold page while one is missing, else 0.

    Raises:
        DataError: A question names no gold page.
    """
    rows = []
    for episode in group:
        made_by, found = acting_calls(episode), new_pages(episode, _question(episode, context))
        approved = {made_by[turn] for turn, pages in found.items() if pages and turn in made_by}
        rows.append([float(place in approved) for place in range(len(episode.calls))])
    return rows


def oracle_answers(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives each answer once no gold page is missing the episode's outcome, and 0 to all other calls.

    Raises:
        DataError: A question names no gold page.
    """
    rows = []
    for episode in group:
        question = _question(episode, context)
        rewards, made_by, found = [0.0] * len(episode.calls), acting_calls(episode), new_pages(episode, question)
        whole = sum(found.values()) == len({title_key(title) for title in question.gold_titles or ()})
        if whole and episode.stop_reason == "answer" and made_by:
            rewards[max(made_by.values())] = episode.reward
        rows.append(rewards)
    return rows


def _question(episode: Episode, context: CreditContext) -> Question:
    question = context.question(episode)
    if not question.gold_titles:
        raise DataError(f"question {question.id!r} names no gold page, and oracle credit needs them")
    return question
