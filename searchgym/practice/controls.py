"""Credit terms that are controls: what a training does when its rewards mean nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from searchgym.records import Episode
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.algorithms.terms import CreditContext, Rows


def permuted(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives each attempt the outcome of an attempt at the same question, drawn without replacement.

    A group keeps its rewards, and so its mean, its deviation and whether it has signal; which attempt earned them is
    chance. What a training by it changes is no effect of the rewards. The draw depends on the group's key alone.

    Use it as ``credit.terms: [searchgym.practice.controls:permuted]``.
    """
    rng = random.Random(f"permuted {group[0].group_uid}")
    rewards = rng.sample([episode.reward for episode in group], len(group))
    return [outcome_rewards(replace(episode, reward=own)) for episode, own in zip(group, rewards, strict=True)]
