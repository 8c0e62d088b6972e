"""Groups of episodes or calls that are compared: which have signal, and what an estimator makes of each.

Forming groups and writing advantages onto samples is done in `searchgym.train.algorithms.advantages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from searchgym.errors import DataError
from searchgym.train.algorithms.estimator import AdvantageOptions, Floats, Group, GroupCounts

ROUNDING, SINGLE = 1e-9, 1e-6
"""Absolute tolerance for float64 sums of order 1, and relative tolerance for float32; see `equal`."""


def equal(values: Floats) -> bool:
    """Returns True if all values are equal up to rounding.

    Rounding differences must not count as signal: divided by their own deviation they would give advantages around 1.
    """
    return float(values.max() - values.min()) <= max(ROUNDING, SINGLE * float(np.abs(values).max()))


def whiten(values: Sequence[Floats], divisor: Callable[[Floats], float]) -> list[Floats]:
    """Whitens values over all trained tokens t of the batch: ``(A_t - mean(A)) / (max(std(A), floor) + eps)``.

    Source: REINFORCE++, arXiv 2501.03262: advantages are normalised over the global batch, token by token (so a long
    episode weighs more), as OpenRLHF and verl do. Deviation from both: nothing is clamped, and eps is added outside the
    square root.

    Args:
        values: One (n,) float64 array per sequence.
        divisor: Returns what centred values are divided by, ``max(std, floor) + eps``; see `Scaled.divisor`.

    Returns:
        Whitened values, of the shapes given; all 0 if the values are equal.
    """
    every = np.concatenate([np.zeros(0), *values])
    if not len(every) or equal(every):
        return [np.zeros_like(row) for row in values]
    mean, by = every.mean(), divisor(every)
    return [(row - mean) / by for row in values]


def group_advantages(
    rewards: Floats,
    groups: Sequence[str],
    options: AdvantageOptions,
    *,
    searches: Sequence[int] | None = None,
    penalties: Floats | None = None,
) -> tuple[Floats, GroupCounts]:
    """Computes one advantage per episode, by comparison within groups.

    For estimators that whiten the results are not whitened yet; see `whiten`.

    Args:
        rewards: (N,) float64, one per episode.
        groups: N group keys; equal keys are compared with each other.
        options: Estimator and least group size.
        searches: N numbers of searches. Default: 0.
        penalties: (N,) float64 KL penalties that are subtracted from the rewards. Default: none.

    Returns:
        (N,) float64 advantages, exactly 0 in a group without signal; and the counts of groups by outcome.

    Raises:
        DataError: A reward that is not finite.
    """
    rewards = np.asarray(rewards, np.float64)
    returns = rewards if penalties is None else rewards - penalties
    counts = np.zeros(len(rewards), np.int64) if searches is None else np.asarray(searches, np.int64)
    advantages = np.zeros(len(rewards))
    fates, members = group_fates(rewards, groups, options), members_of(groups)
    more: Counter[str] = Counter()
    for key, indices in members.items():
        if fates[key] == "signal":
            group = Group(returns[indices], rewards[indices], counts[indices])
            advantages[indices] = options.estimator.compare(group)
            more.update(options.estimator.tally(group))
    return advantages, replace(counts_of(fates), more=dict(more))


def counts_of(fates: Mapping[str, str]) -> GroupCounts:
    """Returns the counts of groups, given the fate of each; see `group_fates`."""
    outcomes = list(fates.values())
    return GroupCounts(len(fates), outcomes.count("small"), outcomes.count("zero_variance"))


def group_fates(rewards: Floats, groups: Sequence[str], options: AdvantageOptions) -> dict[str, str]:
    """Returns the fate of each group by key: ``"signal"``, ``"small"`` or ``"zero_variance"``; see `GroupCounts`.

    Raises:
        DataError: A reward that is not finite.
    """
    if not np.isfinite(rewards).all():
        bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(f"reward {rewards[bad]} in group {groups[bad]!r}: a reward must be finite")
    fates = {}
    for key, indices in members_of(groups).items():
        if len(indices) < options.min_group:
            fates[key] = "small"
        else:
            fates[key] = "zero_variance" if equal(rewards[indices]) else "signal"
    return fates


def members_of(groups: Sequence[str]) -> dict[str, list[int]]:
    """Returns, for each group key, the indices of its members."""
    members: dict[str, list[int]] = {}
    for i, key in enumerate(groups):
        members.setdefault(key, []).append(i)
    return members
