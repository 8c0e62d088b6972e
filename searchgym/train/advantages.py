"""Advantages: what each trained token is worth, from the rewards of the episodes that are compared.

One estimator is one small function on the returns r of one group (`grpo`, `rloo`, `stratified`, `centred`), or on the
tokens of the whole batch (`whiten`); `assign_advantages` puts them on samples. GAE, which asks a critic and compares
nothing, is in `searchgym.train.gae`. What holds for all of these:

* *Without signal.* Episodes whose rewards are all equal teach nothing and get exactly 0, and so does a group of one or
  below `min_group` (Search-R1 sets mean 0 and deviation 1 there, which lets the raw reward through). Both are counted,
  and leave the batch with `drop_zero_variance`. For ``reinforce++`` the whole batch is the group. Kept in the batch of
  ``reinforce++-baseline``, groups of equal rewards are 0 before the batch's mean is taken off, as its formula says.
* *KL in the reward.* The return is ``r - kl_coef * sum of k1``, over the episode's trained tokens; ``reinforce++``
  gives each token the k1 of its sequence from itself on. Whether there is signal is judged on the reward alone: divided
  by its own deviation, a group of equal rewards would turn KL differences of any size into advantages around 1.
* An episode counts once in its group, however many sequences it became.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.train.options import AdvantageOptions
from searchgym.train.samples import Sample

Floats = npt.NDArray[np.float64]
BATCH = ""
"""Group key of every episode where the batch is compared as a whole."""


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
            equal = rewards[stratum].max() == rewards[stratum].min()
            within[stratum] = 0.0 if equal else grpo(own, options)
    return options.alpha * within + (1 - options.alpha) * group


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
    if not len(every) or every.max() == every.min():
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
    fates, members = group_fates(rewards, groups, options), _members(groups)
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
    for key, indices in _members(groups).items():
        own = rewards[indices]
        if len(own) < options.min_group:
            fates[key] = "small"
        else:
            fates[key] = "zero_variance" if own.max() == own.min() else "signal"
    return fates


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
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


# -- samples -------------------------------------------------------------------------------------------------------


def assign_advantages(
    samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float = 0.0
) -> tuple[list[Sample], GroupCounts]:
    """Sets the advantages of a batch of samples.

    Args:
        samples: Whole groups: every sequence of every episode that is compared. With `old_logp` and `ref_logp` where
            `kl_coef` is above 0.
        options: See `group_advantages`; with `drop_zero_variance`, sequences of groups without signal are left out,
            with `drop_overlong` those of overlong episodes, which their group was compared with all the same.
        kl_coef: Weight of the KL penalty in the reward.

    Returns:
        The samples in the same order, advantages set on their masks; and what became of the groups.

    Raises:
        DataError: A sample without a group, or a group that mixes questions.
    """
    episodes = _episodes(samples)
    keys = [BATCH if options.estimator == "reinforce++" else group for group, _ in episodes]
    rewards = _rewards(episodes.values())
    penalties = [kl_coef * k1_of(sample) if kl_coef else np.zeros(int(sample.mask.sum())) for sample in samples]
    sums = dict.fromkeys(episodes, 0.0)
    for sample, own in zip(samples, penalties, strict=True):
        sums[_key(sample)] += float(own.sum())
    searches = [sample.searches for sample in episodes.values()]
    taken = None if not kl_coef or options.estimator == "reinforce++" else np.array(list(sums.values()))
    advantages, counts = group_advantages(rewards, keys, options, searches=searches, penalties=taken)
    fates = group_fates(rewards, keys, options)
    fate = {episode: fates[key] for episode, key in zip(episodes, keys, strict=True)}
    by_episode = dict(zip(episodes, advantages, strict=True))

    values = [np.full(int(sample.mask.sum()), by_episode[_key(sample)]) for sample in samples]
    if options.estimator == "reinforce++":  # the return of a token: the reward less the k1 from itself on
        there = [fate[_key(sample)] == "signal" for sample in samples]
        to_go = [np.cumsum(kl[::-1])[::-1] for kl in penalties]
        values = [own - kl if ok else own for own, kl, ok in zip(values, to_go, there, strict=True)]
    kept = [i for i, s in enumerate(samples) if fate[_key(s)] == "signal" or not options.drop_zero_variance]
    if options.estimator.startswith("reinforce++"):
        whitened = [i for i in kept if fate[_key(samples[i])] != "small"]
        for i, own in zip(whitened, whiten([values[i] for i in whitened], options), strict=True):
            values[i] = own
    kept = [i for i in kept if not (options.drop_overlong and samples[i].overlong)]
    return [with_advantage(samples[i], values[i]) for i in kept], counts


def groups_with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str]:
    """Returns the groups that are large enough and whose rewards differ; see `assign_advantages`."""
    episodes = _episodes(samples)
    fates = group_fates(_rewards(episodes.values()), [group for group, _ in episodes], options)
    return {group for group, fate in fates.items() if fate == "signal"}


def _key(sample: Sample) -> tuple[str, str]:
    """Returns the group and the episode of a sample that has both."""
    return sample.group_uid or "", sample.episode_id


def _episodes(samples: Sequence[Sample]) -> dict[tuple[str, str], Sample]:
    """Returns the first sample of each episode, by group and episode; see `assign_advantages` for the errors."""
    episodes: dict[tuple[str, str], Sample] = {}
    questions: dict[str, str] = {}
    for sample in samples:
        if sample.group_uid is None:
            raise DataError(f"episode {sample.episode_id} has no group_uid: set it where the attempts are drawn")
        if questions.setdefault(sample.group_uid, sample.question_id) != sample.question_id:
            both = f"{questions[sample.group_uid]!r} and {sample.question_id!r}"
            raise DataError(f"group {sample.group_uid!r} holds questions {both}: a group is one question")
        episodes.setdefault(_key(sample), sample)
    return episodes


def _rewards(samples: Iterable[Sample]) -> Floats:
    """Returns the rewards of samples, (N,) float64; nothing outside a mask counts."""
    return np.array([float(sample.reward[sample.mask].sum()) for sample in samples])


def k1_of(sample: Sample) -> Floats:
    """Returns ``old_logp - ref_logp`` of each trained token, (n,) float64: its mean is the KL to the reference."""
    if sample.old_logp is None or sample.ref_logp is None:
        raise DataError(f"episode {sample.episode_id}: KL in the reward needs old_logp and ref_logp")
    return (sample.old_logp[sample.mask] - sample.ref_logp[sample.mask]).astype(np.float64)


def with_advantage(sample: Sample, values: Floats) -> Sample:
    """Returns the sample with advantages on its mask and 0 elsewhere."""
    advantage = np.zeros(len(sample.ids), np.float32)
    advantage[sample.mask] = values.astype(np.float32)
    return dataclasses.replace(sample, advantage=advantage)
