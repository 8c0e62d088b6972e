"""Estimators: from the rewards of episodes, or of calls, that are compared to one number for each.

One estimator is one small function on the returns r of one group (`grpo`, `rloo`, `stratified`, `centred`), or on the
tokens of the whole batch (`whiten`). What gets an advantage, and where it goes, is in
`searchgym.train.algorithms.advantages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.train.recipe.options import AdvantageOptions

Floats = npt.NDArray[np.float64]
ROUNDING, SINGLE = 1e-9, 1e-6
"""How far apart equal numbers of size 1 may be after sums in double precision; equal numbers in single, relatively."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What became of the groups of a batch."""

    groups: int
    small: int
    """Groups with fewer than `AdvantageOptions.min_group` episodes."""
    zero_variance: int
    """Groups that are large enough and whose rewards are all equal."""
    strata: int | None = None
    """``stratified``: strata of the groups with signal."""
    lone: int | None = None
    """``stratified``: strata of one episode, which got the advantage of the whole group."""


# -- one group -----------------------------------------------------------------------------------------------------


def grpo(returns: Floats, options: AdvantageOptions) -> Floats:
    """Computes ``(r_i - mean(r)) / (max(std(r), floor) + eps)``.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2, outcome supervision. Search-R1 uses the deviation over n - 1
    and eps 1e-6 (the defaults), TRL over n - 1 and 1e-4; ``std: none`` is Dr.GRPO, arXiv 2503.20783. The floor is ours.
    """
    advantages: Floats = (returns - returns.mean()) / _divisor(returns, options)
    return advantages


def rloo(returns: Floats) -> Floats:
    """Computes ``r_i - mean of the others``.

    Source: RLOO, arXiv 2402.14740, equation 7 (Kool et al. 2019). Its loss takes whole responses as one action; here
    the advantage stands on every token of the clipped ratio, which has the same gradient at ratio one.
    """
    advantages: Floats = returns - (returns.sum() - returns) / (len(returns) - 1)
    return advantages


def centred(returns: Floats) -> Floats:
    """Computes ``r_i - mean(r)``: the first half of ``reinforce++-baseline``, which `whiten` completes.

    Source: REINFORCE++, arXiv 2501.03262, the variant with a group baseline.
    """
    advantages: Floats = returns - returns.mean()
    return advantages


def stratified(
    returns: Floats, searches: npt.NDArray[np.int64], options: AdvantageOptions, rewards: Floats | None = None
) -> Floats:
    """Computes ``alpha A_SAN + (1 - alpha) A_GN``: compared with episodes of as many searches, and with all.

    ``A_SAN`` is `grpo` within the stratum, ``A_GN`` is `grpo` within the group.

    Source: Stratified GRPO, arXiv 2510.06214. It leaves open what a stratum of one episode gets (0 or a division by 0,
    as the deviation is defined); here it falls back to the coarser comparison, ``A_SAN = A_GN``. A stratum of equal
    rewards has ``A_SAN`` 0. Its alpha is not known to us. With groups below 8 most strata hold one episode or two.

    Args:
        returns: (n,) of one group.
        searches: (n,) searches of each episode.
        options: `alpha`, and those of `grpo`.
        rewards: (n,) by which a stratum counts as equal, where the returns are less a KL penalty.
    """
    rewards = returns if rewards is None else rewards
    group = grpo(returns, options)
    within = group.copy()
    for count in np.unique(searches):
        stratum = searches == count
        own = returns[stratum]
        if len(own) > 1:
            within[stratum] = 0.0 if equal(rewards[stratum]) else grpo(own, options)
    return options.alpha * within + (1 - options.alpha) * group


def equal(values: Floats) -> bool:
    """Returns whether values are equal but for rounding: differences of scores that should be 0 are not quite.

    Divided by their own deviation they would become advantages around 1.
    """
    return float(values.max() - values.min()) <= max(ROUNDING, SINGLE * float(np.abs(values).max()))


def _divisor(values: Floats, options: AdvantageOptions) -> float:
    """Returns what centred values are divided by."""
    if options.std == "none":
        return 1.0
    deviation = float(values.std(ddof=1 if options.std == "sample" else 0))
    return max(deviation, options.std_floor) + options.eps


# -- the batch -----------------------------------------------------------------------------------------------------


def whiten(values: Sequence[Floats], options: AdvantageOptions) -> list[Floats]:
    """Computes ``(A_t - mean(A)) / (max(std(A), floor) + eps)`` over all trained tokens t of the batch.

    Source: REINFORCE++, arXiv 2501.03262: advantages are normalised over the global batch, token by token (so a long
    episode weighs more), as OpenRLHF and verl do. Deviation from both: nothing is clamped, eps stands outside the root.

    Args:
        values: One (n,) array per sequence.
        options: Deviation, floor and eps.
    """
    every = np.concatenate([np.zeros(0), *values])
    if not len(every) or equal(every):
        return [np.zeros_like(own) for own in values]
    mean, divisor = every.mean(), _divisor(every, options)
    return [(own - mean) / divisor for own in values]


def group_advantages(
    rewards: Floats,
    groups: Sequence[str],
    options: AdvantageOptions,
    *,
    searches: Sequence[int] | None = None,
    penalties: Floats | None = None,
) -> tuple[Floats, GroupCounts]:
    """Computes one advantage per episode; for ``reinforce++`` and its variant, what `whiten` begins with.

    Args:
        rewards: (N,) float64, one per episode.
        groups: N group keys; equal keys are compared with each other.
        options: Estimator, deviation, floor and least group size.
        searches: N searches, for ``stratified``.
        penalties: (N,) float64 KL penalties that are taken off the rewards.

    Returns:
        (N,) float64 advantages (what `whiten` takes, where that follows), exactly 0 in a group without signal; and what
        became of the groups.

    Raises:
        DataError: A reward that is not finite.
    """
    rewards = np.asarray(rewards, np.float64)
    if not np.isfinite(rewards).all():
        bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(f"reward {rewards[bad]} in group {groups[bad]!r}: a reward must be finite")
    returns = rewards if penalties is None else rewards - penalties
    counts = np.zeros(len(rewards), np.int64) if searches is None else np.asarray(searches, np.int64)
    advantages = np.zeros(len(rewards))
    fates, members = group_fates(rewards, groups, options), members_of(groups)
    strata = lone = 0
    for key, indices in members.items():
        if fates[key] == "signal":
            advantages[indices] = _estimate(returns[indices], counts[indices], options, rewards[indices])
            _, sizes = np.unique(counts[indices], return_counts=True)
            strata, lone = strata + len(sizes), lone + int((sizes == 1).sum())
    found = list(fates.values())
    kinds = (strata, lone) if options.estimator == "stratified" else (None, None)
    return advantages, GroupCounts(len(members), found.count("small"), found.count("zero_variance"), *kinds)


def group_fates(rewards: Floats, groups: Sequence[str], options: AdvantageOptions) -> dict[str, str]:
    """Returns for each group key ``"signal"``, ``"small"`` or ``"zero_variance"``; see `GroupCounts`."""
    fates = {}
    for key, indices in members_of(groups).items():
        own = rewards[indices]
        if len(own) < options.min_group:
            fates[key] = "small"
        else:
            fates[key] = "zero_variance" if equal(own) else "signal"
    return fates


def members_of(groups: Sequence[str]) -> dict[str, list[int]]:
    """Returns the places of each group key."""
    members: dict[str, list[int]] = {}
    for i, key in enumerate(groups):
        members.setdefault(key, []).append(i)
    return members


def _estimate(returns: Floats, searches: npt.NDArray[np.int64], options: AdvantageOptions, rewards: Floats) -> Floats:
    """Applies the estimator of the options to one group."""
    if options.estimator == "grpo":
        return grpo(returns, options)
    if options.estimator == "rloo":
        return rloo(returns)
    if options.estimator == "stratified":
        return stratified(returns, searches, options, rewards)
    return centred(returns) if options.estimator == "reinforce++-baseline" else returns
