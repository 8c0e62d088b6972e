"""Advantages: what each trained token is worth, from the rewards of the episodes that are compared.

`assign_advantages` puts on samples what an estimator of `searchgym.train.algorithms.estimators` makes of a group. GAE,
which asks a critic and compares nothing, is in `searchgym.train.algorithms.gae`. What holds for all of these:

* *Without signal.* Episodes whose rewards are all equal teach nothing and get exactly 0, and so does a group of one or
  below `min_group` (Search-R1 sets mean 0 and deviation 1 there, which lets the raw reward through). Both are counted,
  and leave the batch with `drop_zero_variance`. For ``reinforce++`` the whole batch is the group. Groups of equal
  rewards that stay in the batch of ``reinforce++-baseline`` are 0 before the batch's mean is taken off.
* *KL in the reward.* The return is ``r - kl_coef * sum of k1``, over the episode's trained tokens; ``reinforce++``
  gives each token the k1 of its sequence from itself on. Whether there is signal is judged on the reward alone: divided
  by its own deviation, a group of equal rewards would turn KL differences of any size into advantages around 1.
* An episode counts once in its group, however many sequences it became; that is ``normalise: all``, which asks for
  one reward per episode. Where calls have rewards of their own, they are compared with calls of the same role
  (``normalise: role``), also in the same turn (``role-turn``): a call's return is its own reward and those of later
  calls in its sequence, never of other sequences. A call whose cell is below `min_group` is compared with all calls of
  its role in the group; with fewer than that of those, too, it gets no advantage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from searchgym.errors import DataError
from searchgym.train.algorithms.estimators import Floats, GroupCounts, group_advantages, group_fates, members_of, whiten
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import AdvantageOptions

BATCH = ""
"""Group key of every episode where the batch is compared as a whole."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is compared: an episode as a whole, or one call."""

    key: str
    """Those of equal keys are compared."""
    fallback: str
    """The same for a unit whose key has too few."""
    reward: float
    penalty: float
    """KL penalty on it."""
    searches: int
    tokens: tuple[tuple[int, int, int], ...]
    """Where its advantage goes: (number of a sample, first and last but one of the sample's trained tokens)."""


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
        DataError: A sample without a group, a group that mixes questions, or sequences of one episode whose rewards
            differ where episodes are compared as wholes.
    """
    to_go = [_to_go(sample, kl_coef) for sample in samples]
    units = _units(samples, options, to_go)
    by_token = options.estimator == "reinforce++"
    advantages, fates, counts = _compare(units, options, with_penalties=bool(kl_coef) and not by_token)
    values, signal, small = [np.zeros(len(kl)) for kl in to_go], [False] * len(samples), [True] * len(samples)
    for unit, advantage, fate in zip(units, advantages, fates, strict=True):
        for i, start, end in unit.tokens:
            values[i][start:end] = advantage
            if fate == "signal":
                signal[i] = True
                if by_token:  # the return of a token: the reward less the k1 from itself on
                    values[i][start:end] -= to_go[i][start:end]
            small[i] = small[i] and fate == "small"
    kept = [i for i in range(len(samples)) if signal[i] or not options.drop_zero_variance]
    if options.estimator.startswith("reinforce++"):
        whitened = [i for i in kept if not small[i]]
        cells = whiten_cells([values[i] for i in whitened], [samples[i] for i in whitened], options)
        for i, own in zip(whitened, cells, strict=True):
            values[i] = own
        for unit, fate in zip(units, fates, strict=True):  # what has nobody to be compared with gets exactly 0
            for i, start, end in unit.tokens if fate == "small" else ():
                values[i][start:end] = 0
    kept = [i for i in kept if not (options.drop_overlong and samples[i].overlong)]
    return [with_advantage(samples[i], values[i]) for i in kept], counts


def groups_with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str]:
    """Returns the groups that are large enough and whose rewards differ; see `assign_advantages`."""
    units = _units(samples, options, [_to_go(sample, 0.0) for sample in samples])
    _, fates, _ = _compare(units, options)
    found = (unit for unit, fate in zip(units, fates, strict=True) if fate == "signal")
    return {samples[i].group_uid or "" for unit in found for i, _, _ in unit.tokens}


def _compare(
    units: Sequence[_Unit], options: AdvantageOptions, with_penalties: bool = False
) -> tuple[Floats, list[str], GroupCounts]:
    """Returns each unit's advantage and fate, and what became of the groups; see `group_advantages`.

    A unit whose group is too small is compared with its fallback's whole group.
    """
    rewards, searches = np.array([unit.reward for unit in units]), [unit.searches for unit in units]
    penalties = np.array([unit.penalty for unit in units]) if with_penalties else None

    def by(keys: Sequence[str]) -> tuple[Floats, list[str], GroupCounts]:
        advantages, counts = group_advantages(rewards, keys, options, searches=searches, penalties=penalties)
        fates = group_fates(rewards, keys, options)
        return advantages, [fates[key] for key in keys], counts

    advantages, fates, counts = by([unit.key for unit in units])
    if "small" in fates and options.normalise == "role-turn":
        coarse, coarse_fates, _ = by([unit.fallback for unit in units])
        alone = np.array([fate == "small" for fate in fates])
        advantages = np.where(alone, coarse, advantages)
        fates = [own if fate == "small" else fate for fate, own in zip(fates, coarse_fates, strict=True)]
    return advantages, fates, counts


def whiten_cells(values: Sequence[Floats], samples: Sequence[Sample], options: AdvantageOptions) -> list[Floats]:
    """Whitens the values of trained tokens among those that `AdvantageOptions.normalise` puts together.

    Args:
        values: One (n,) array per sample.
        samples: The same.
        options: See `whiten`.
    """
    if options.normalise == "all":
        return whiten(values, options)
    made = [np.zeros_like(own) for own in values]
    places = [(i, *place) for i, sample in enumerate(samples) for place in _call_tokens(sample)]
    fine, coarse = zip(*_cells(samples, options, [""] * len(samples)), strict=True) if places else ((), ())
    wide = members_of(coarse)
    for key, members in members_of(fine).items():
        # too few in this turn: those of the role in all turns; too few of those: nothing is left of the values
        cell = members if len(members) >= options.min_group else wide[coarse[members[0]]]
        if len(cell) >= options.min_group:
            white = whiten([values[i][start:end] for i, start, end in (places[m] for m in cell)], options)
            for m, own in zip(cell, white, strict=True):
                i, start, end = places[m]
                if fine[m] == key:
                    made[i][start:end] = own
    return made


def _to_go(sample: Sample, kl_coef: float) -> Floats:
    """Returns the KL penalty of each trained token and those after it, (n,)."""
    if not kl_coef:
        return np.zeros(int(sample.mask.sum()))
    return np.cumsum(kl_coef * k1_of(sample)[::-1])[::-1]


def _units(samples: Sequence[Sample], options: AdvantageOptions, to_go: Sequence[Floats]) -> list[_Unit]:
    """Returns what is compared, in the order of the samples; see `assign_advantages` for the errors."""
    _check_groups(samples)
    batch = options.estimator == "reinforce++"
    if options.normalise != "all":
        keys = iter(_cells(samples, options, [BATCH if batch else s.group_uid or "" for s in samples]))
        units = []
        for i, sample in enumerate(samples):
            rewards = np.cumsum(sample.reward[sample.mask][::-1].astype(np.float64))[::-1]
            for start, end in _call_tokens(sample):
                penalty = float(to_go[i][start])
                units.append(_Unit(*next(keys), float(rewards[start]), penalty, sample.searches, ((i, start, end),)))
        return units
    episodes: dict[tuple[str, str], list[int]] = {}
    for i, sample in enumerate(samples):
        episodes.setdefault((sample.group_uid or "", sample.episode_id), []).append(i)
    return [_whole(key, own, samples, to_go, batch) for key, own in episodes.items()]


def _whole(
    key: tuple[str, str], own: Sequence[int], samples: Sequence[Sample], to_go: Sequence[Floats], batch: bool
) -> _Unit:
    """Returns an episode as a unit: it counts once, however many sequences it became."""
    rewards = [float(samples[i].reward[samples[i].mask].sum()) for i in own]
    if min(rewards) != max(rewards):
        different = f"rewards of its sequences differ ({min(rewards):g} to {max(rewards):g})"
        raise DataError(
            f"episode {key[1]}: {different}, and episodes are compared as wholes: set advantage.normalise to role"
        )
    penalty = sum(float(to_go[i][0]) for i in own if len(to_go[i]))
    tokens = tuple((i, 0, len(to_go[i])) for i in own)
    group = BATCH if batch else key[0]
    return _Unit(group, group, rewards[0], penalty, samples[own[0]].searches, tokens)


def _cells(samples: Sequence[Sample], options: AdvantageOptions, groups: Sequence[str]) -> list[tuple[str, str]]:
    """Returns two keys per call: group, role and, if asked for, turn; group and role alone."""
    calls = [(group, call) for sample, group in zip(samples, groups, strict=True) for call in sample.calls]
    coarse = [f"{group} {call.role}" for group, call in calls]
    turns = [f" {call.turn}" if options.normalise == "role-turn" else "" for _, call in calls]
    return [(role + turn, role) for role, turn in zip(coarse, turns, strict=True)]


def _call_tokens(sample: Sample) -> list[tuple[int, int]]:
    """Returns where each call of a sample begins and ends among its trained tokens."""
    before = np.concatenate([[0], np.cumsum(sample.mask)])
    return [(int(before[call.start]), int(before[call.end])) for call in sample.calls]


def _check_groups(samples: Sequence[Sample]) -> None:
    """Refuses samples that do not say with whom they are compared."""
    questions: dict[str, str] = {}
    for sample in samples:
        if sample.group_uid is None:
            raise DataError(f"episode {sample.episode_id} has no group_uid: set it where the attempts are drawn")
        if questions.setdefault(sample.group_uid, sample.question_id) != sample.question_id:
            both = f"{questions[sample.group_uid]!r} and {sample.question_id!r}"
            raise DataError(f"group {sample.group_uid!r} holds questions {both}: a group is one question")


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
