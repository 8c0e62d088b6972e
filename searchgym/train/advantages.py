"""GRPO: rewards of a group of episodes become advantages.

    A_i = (r_i - mean(r)) / (max(std(r), floor) + eps)        for the episodes i of one group

Every trained token of an episode gets its episode's advantage.

Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2, outcome supervision. Search-R1 uses the deviation over n - 1 and
eps 1e-6 (the defaults here), TRL over n - 1 and 1e-4; ``std: none`` is Dr.GRPO, arXiv 2503.20783.

Deviations: a group of one, or below `min_group`, gets 0 (Search-R1 sets mean 0 and deviation 1 there, which lets the
raw reward through), and is counted. A group of equal rewards gets exactly 0, and is counted. The floor is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.train.recipe import AdvantageOptions
from searchgym.train.samples import Sample


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What became of the groups of a batch."""

    groups: int
    small: int
    """Groups with fewer than `AdvantageOptions.min_group` episodes."""
    zero_variance: int
    """Groups that are large enough and whose rewards are all equal."""


def group_advantages(
    rewards: npt.NDArray[np.float64], groups: Sequence[str], options: AdvantageOptions
) -> tuple[npt.NDArray[np.float64], GroupCounts]:
    """Computes one advantage per episode.

    Args:
        rewards: (N,) float64, one per episode.
        groups: N group keys; equal keys are compared with each other.
        options: Deviation, floor and least group size.

    Returns:
        (N,) float64 advantages, exactly 0 in a group without signal; and what became of the groups.

    Raises:
        DataError: A reward that is not finite.
    """
    rewards = np.asarray(rewards, np.float64)
    if not np.isfinite(rewards).all():
        bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(f"reward {rewards[bad]} in group {groups[bad]!r}: a reward must be finite")
    members: dict[str, list[int]] = {}
    for i, key in enumerate(groups):
        members.setdefault(key, []).append(i)
    advantages = np.zeros(len(rewards))
    small = zero = 0
    for indices in members.values():
        own = rewards[indices]
        if len(own) < options.min_group:
            small += 1
        elif own.max() == own.min():
            zero += 1
        else:
            advantages[indices] = (own - own.mean()) / _divisor(own, options)
    return advantages, GroupCounts(len(members), small, zero)


def _divisor(rewards: npt.NDArray[np.float64], options: AdvantageOptions) -> float:
    """Returns what the centred rewards of one group are divided by."""
    if options.std == "none":
        return 1.0
    deviation = float(rewards.std(ddof=1 if options.std == "sample" else 0))
    return max(deviation, options.std_floor) + options.eps


def assign_advantages(samples: Sequence[Sample], options: AdvantageOptions) -> tuple[list[Sample], GroupCounts]:
    """Sets the advantages of a batch of samples.

    An episode counts once in its group, however many sequences it became.

    Args:
        samples: Whole groups: every sequence of every episode that is compared.
        options: See `group_advantages`; with `drop_zero_variance`, sequences of groups without signal are left out.

    Returns:
        The samples in the same order, advantages set on their masks; and what became of the groups.

    Raises:
        DataError: A sample without a group, or a group that mixes questions.
    """
    episodes: dict[tuple[str, str], Sample] = {}
    questions: dict[str, str] = {}
    for sample in samples:
        if sample.group_uid is None:
            raise DataError(f"episode {sample.episode_id} has no group_uid: set it where the attempts are drawn")
        if questions.setdefault(sample.group_uid, sample.question_id) != sample.question_id:
            both = f"{questions[sample.group_uid]!r} and {sample.question_id!r}"
            raise DataError(f"group {sample.group_uid!r} holds questions {both}: a group is one question")
        episodes.setdefault((sample.group_uid, sample.episode_id), sample)
    rewards = np.array([float(sample.reward.sum()) for sample in episodes.values()])
    advantages, counts = group_advantages(rewards, [group for group, _ in episodes], options)
    by_episode = dict(zip(episodes, advantages, strict=True))
    signal = {group for (group, _), advantage in by_episode.items() if advantage != 0}
    kept = []
    for sample in samples:
        assert sample.group_uid is not None
        if sample.group_uid in signal or not options.drop_zero_variance:
            value = np.float32(by_episode[sample.group_uid, sample.episode_id])
            kept.append(dataclasses.replace(sample, advantage=np.where(sample.mask, value, np.float32(0))))
    return kept, counts
