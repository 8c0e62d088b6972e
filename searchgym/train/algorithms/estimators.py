"""Advantage estimators: formulas from the rewards of a group to one advantage per episode or call.

Each estimator is a small function on the returns r of one group (`grpo`, `rloo`, `stratified`, `centred`), or on the
tokens of the whole batch (`whiten`). Forming groups and writing advantages onto samples is done in
`searchgym.train.algorithms.advantages`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.train.recipe.options import AdvantageOptions

Floats = npt.NDArray[np.float64]
"""A float64 array."""
ROUNDING, SINGLE = 1e-9, 1e-6
"""Absolute tolerance for float64 sums of order 1, and relative tolerance for float32; see `equal`."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of a batch's groups by outcome, for metrics."""

    groups: int
    """Number of groups in the batch."""
    small: int
    """Number of groups with fewer than `AdvantageOptions.min_group` episodes."""
    zero_variance: int
    """Number of groups that are large enough but whose rewards are all equal."""
    strata: int | None = None
    """Number of strata in the groups with signal; None unless the estimator is ``stratified``."""
    lone: int | None = None
    """Number of strata of one episode, which got the whole group's advantage; None unless ``stratified``."""
    nodes: int | None = None
    """Number of different calls in the groups with signal; None unless the estimator is ``tree``."""
    shared: int | None = None
    """Number of these that several attempts went through; None unless ``tree``."""


# -- one group -----------------------------------------------------------------------------------------------------


def grpo(returns: Floats, options: AdvantageOptions) -> Floats:
    """Computes GRPO's advantages of one group, ``(r_i - mean(r)) / (max(std(r), floor) + eps)``, (n,) float64.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2, outcome supervision. Search-R1 uses the deviation over n - 1
    and eps 1e-6 (the defaults), TRL over n - 1 and 1e-4; ``std: none`` is Dr.GRPO, arXiv 2503.20783. The floor is ours.
    """
    advantages: Floats = (returns - returns.mean()) / _divisor(returns, options)
    return advantages


def rloo(returns: Floats) -> Floats:
    """Computes RLOO's advantages of one group, ``r_i - mean of the others``, (n,) float64.

    Source: RLOO, arXiv 2402.14740, equation 7 (Kool et al. 2019). Deviation: its loss treats a whole response as one
    action; here every token of the clipped-ratio loss gets the advantage, which gives the same gradient at ratio 1.
    """
    advantages: Floats = returns - (returns.sum() - returns) / (len(returns) - 1)
    return advantages


def centred(returns: Floats) -> Floats:
    """Computes ``r_i - mean(r)``, (n,) float64: the first half of ``reinforce++-baseline``, which `whiten` completes.

    Source: REINFORCE++, arXiv 2501.03262, the variant with a group baseline.
    """
    advantages: Floats = returns - returns.mean()
    return advantages


def stratified(
    returns: Floats, searches: npt.NDArray[np.int64], options: AdvantageOptions, rewards: Floats | None = None
) -> Floats:
    """Computes Stratified GRPO's advantages of one group, ``alpha A_SAN + (1 - alpha) A_GN``, (n,) float64.

    ``A_SAN`` is `grpo` within the stratum, the episodes with the same number of searches, with the deviation over n, so
    that its variance there is 1; ``A_GN`` is `grpo` within the group, with the deviation that `std` says. Neither is
    divided with ``std: none``.

    Source: Stratified GRPO, arXiv 2510.06214, which proves unit variance within strata. The paper leaves the advantage
    of a stratum of one episode open (0 or a division by 0, depending on the deviation); here it falls back to
    ``A_SAN = A_GN``. A stratum of equal rewards has ``A_SAN`` 0. The paper does not give its alpha. In groups of fewer
    than 8, most strata hold one or two episodes.

    Args:
        returns: (n,) float64, one per episode of the group.
        searches: (n,) int64, the number of searches of each episode.
        options: `alpha`, and the options of `grpo`.
        rewards: (n,) float64 rewards without KL penalty, which decide whether a stratum has equal rewards. Default:
            the returns.
    """
    rewards = returns if rewards is None else rewards
    over_n = options if options.std == "none" else dataclasses.replace(options, std="population")
    group = grpo(returns, options)
    within = group.copy()
    for count in np.unique(searches):
        stratum = searches == count
        if stratum.sum() > 1:
            within[stratum] = 0.0 if equal(rewards[stratum]) else grpo(returns[stratum], over_n)
    return options.alpha * within + (1 - options.alpha) * group


def equal(values: Floats) -> bool:
    """Returns True if all values are equal up to rounding.

    Rounding differences must not count as signal: divided by their own deviation they would give advantages around 1.
    """
    return float(values.max() - values.min()) <= max(ROUNDING, SINGLE * float(np.abs(values).max()))


def _divisor(values: Floats, options: AdvantageOptions) -> float:
    """Returns the divisor of centred values: ``max(std, floor) + eps``, or 1 with ``std: none``."""
    if options.std == "none":
        return 1.0
    deviation = float(values.std(ddof=1 if options.std == "sample" else 0))
    return max(deviation, options.std_floor) + options.eps


# -- the batch -----------------------------------------------------------------------------------------------------


def whiten(values: Sequence[Floats], options: AdvantageOptions) -> list[Floats]:
    """Whitens values over all trained tokens t of the batch: ``(A_t - mean(A)) / (max(std(A), floor) + eps)``.

    Source: REINFORCE++, arXiv 2501.03262: advantages are normalised over the global batch, token by token (so a long
    episode weighs more), as OpenRLHF and verl do. Deviation from both: nothing is clamped, and eps is added outside the
    square root.

    Args:
        values: One (n,) float64 array per sequence.
        options: Deviation, floor and eps.

    Returns:
        Whitened values, of the shapes given; all 0 if the values are equal.
    """
    every = np.concatenate([np.zeros(0), *values])
    if not len(every) or equal(every):
        return [np.zeros_like(row) for row in values]
    mean, divisor = every.mean(), _divisor(every, options)
    return [(row - mean) / divisor for row in values]


def group_advantages(
    rewards: Floats,
    groups: Sequence[str],
    options: AdvantageOptions,
    *,
    searches: Sequence[int] | None = None,
    penalties: Floats | None = None,
) -> tuple[Floats, GroupCounts]:
    """Computes one advantage per episode, by comparison within groups.

    For ``reinforce++`` and ``reinforce++-baseline`` the results are not whitened yet; see `whiten`.

    Args:
        rewards: (N,) float64, one per episode.
        groups: N group keys; equal keys are compared with each other.
        options: Estimator, deviation, floor and least group size.
        searches: N searches, for ``stratified``.
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
    strata = lone = 0
    for key, indices in members.items():
        if fates[key] == "signal":
            advantages[indices] = _estimate(returns[indices], counts[indices], options, rewards[indices])
            _, sizes = np.unique(counts[indices], return_counts=True)
            strata, lone = strata + len(sizes), lone + int((sizes == 1).sum())
    kinds = (strata, lone) if options.estimator == "stratified" else (None, None)
    return advantages, counts_of(fates, *kinds)


def counts_of(fates: Mapping[str, str], strata: int | None = None, lone: int | None = None) -> GroupCounts:
    """Returns the counts of groups, given the fate of each; see `group_fates`."""
    outcomes = list(fates.values())
    return GroupCounts(len(fates), outcomes.count("small"), outcomes.count("zero_variance"), strata, lone)


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


def _estimate(returns: Floats, searches: npt.NDArray[np.int64], options: AdvantageOptions, rewards: Floats) -> Floats:
    """Applies the estimator of the options to one group."""
    if options.estimator == "grpo":
        return grpo(returns, options)
    if options.estimator == "rloo":
        return rloo(returns)
    if options.estimator == "stratified":
        return stratified(returns, searches, options, rewards)
    return centred(returns) if options.estimator == "reinforce++-baseline" else returns
