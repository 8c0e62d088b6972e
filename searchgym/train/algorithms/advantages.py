"""Advantages: one number per trained token, computed by comparing the rewards of episodes.

`assign_advantages` applies an estimator of `searchgym.train.algorithms.estimators` to each group and writes the result
onto the samples. Rules that hold for all estimators that compare:

* *Without signal.* A group whose rewards are all equal teaches nothing and gets exactly 0, and so does a group smaller
  than `min_group` (Search-R1 sets mean 0 and deviation 1 there, which lets the raw reward through). Both are counted,
  and `drop_zero_variance` removes them from the batch. For ``reinforce-pp`` the whole batch is the group. Groups of
  equal rewards that stay in the batch of ``reinforce-pp-baseline`` are 0 before the batch's mean is subtracted.
* *KL in the reward.* The return is ``r - kl_coef * sum of k1``, over the episode's trained tokens; ``reinforce-pp``
  charges each token the k1 of its sequence from that token on. Whether a group has signal is judged on the reward
  alone: otherwise a group of equal rewards, divided by its deviation, would turn KL differences of any size into
  advantages around 1.
* *What is compared.* With ``normalise: all``, an episode counts once in its group, however many sequences it became,
  and must have a single reward. Where each call has a reward, calls are compared with calls of the same role
  (``normalise: role``), or of the same role and turn (``role-turn``): a call's return is its own reward plus those of
  later calls in its sequence, never of other sequences. A call with fewer than `min_group` calls to compare with in
  its turn is compared with all calls of its role in the group; if these too are fewer, its advantage is 0. With
  ``normalise: query`` calls that ranked a search's hits are compared with those of their role in the group whose
  queries are alike (`searchgym.scoring.ranking.alike`), whatever the attempt or turn; with fewer than `min_group` of
  these their advantage is 0. Other calls are compared as with ``role``. Source: CoSearch, arXiv 2604.17555 (overlap
  0.8, groups of at least 3). Deviation: it also keeps queries whose candidates hold the answer apart from the others.
* *How far rewards go back.* With ``chain: episode``, a call's return is its own reward plus those of all later calls of
  the episode, of whatever sequence, role or model key, but for the parts that stay with their call (`Sample.kept`) and
  for trial answers. With the credit term ``gain`` that is ``s_T - s_before + own penalty``, s_before being the score of
  the answer that stood when the call was made: the last answer's score less a number that the call could not change.
  Compared with calls of other episodes only (``rloo``, ``normalise: role-turn``), the expected gradient is that of the
  last answer's score; with ``role``, a role that acts twice is compared with its own later call too. Ours: no paper
  has it. With ``chain: none`` no reward goes back at all: a call's return is its own reward, as VPR has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchgym.errors import DataError
from searchgym.scoring.ranking import alike
from searchgym.train.algorithms.estimator import AdvantageOptions, Floats, GroupCounts
from searchgym.train.algorithms.groups import group_advantages, group_fates, members_of, whiten
from searchgym.train.algorithms.samples import Sample

BATCH = ""
"""Group key of every episode where the whole batch is one group."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """One item of a comparison: a whole episode, or one call."""

    key: str
    """Group key; units with equal keys are compared with each other."""
    fallback: str
    """Coarser group key, used where `key` has too few units."""
    reward: float
    penalty: float
    """KL penalty, subtracted from the reward."""
    searches: int
    tokens: tuple[tuple[int, int, int], ...]
    """(sample index, start, end): a half-open range over the sample's trained tokens."""


def assign_advantages(
    samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float = 0.0
) -> tuple[list[Sample], GroupCounts]:
    """Sets the advantages of a batch of samples.

    Args:
        samples: Whole groups: every sequence of every episode that is compared. With `old_logp` and `ref_logp` set
            where `kl_coef` is above 0.
        options: See `group_advantages`. `drop_zero_variance` leaves out the sequences of groups without signal,
            `drop_overlong` those of overlong episodes, which still take part in their group's comparison.
        kl_coef: Weight of the KL penalty in the reward.

    Returns:
        The samples in the same order, with advantages set on their masks; and the counts of groups by outcome.

    Raises:
        DataError: A sample without a group, a group that mixes questions, or sequences of one episode whose rewards
            differ although whole episodes are compared.
    """
    to_go = [_to_go(sample, kl_coef) for sample in samples]
    units = _units(samples, options, to_go)
    by_token = options.estimator.kl_by_token
    advantages, fates, counts = _compare(units, options, with_penalties=bool(kl_coef) and not by_token)
    values, signal, small = [np.zeros(len(kl)) for kl in to_go], [False] * len(samples), [True] * len(samples)
    for unit, advantage, fate in zip(units, advantages, fates, strict=True):
        for i, start, end in unit.tokens:
            values[i][start:end] = advantage
            if fate == "signal":
                signal[i] = True
                if by_token:  # a token's return is the reward less the k1 from that token on
                    values[i][start:end] -= to_go[i][start:end]
            small[i] = small[i] and fate == "small"
    kept = [i for i in range(len(samples)) if signal[i] or not options.drop_zero_variance]
    if options.estimator.whitens:
        whitened = [i for i in kept if not small[i]]
        white = whiten_cells([values[i] for i in whitened], [samples[i] for i in whitened], options)
        for i, row in zip(whitened, white, strict=True):
            values[i] = row
        for unit, fate in zip(units, fates, strict=True):  # units with nothing to compare to get exactly 0
            for i, start, end in unit.tokens if fate == "small" else ():
                values[i][start:end] = 0
    kept = [i for i in kept if not (options.drop_overlong and samples[i].overlong)]
    return [with_advantage(samples[i], values[i]) for i in kept], counts


def groups_with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str]:
    """Returns the keys of the groups that are large enough and whose rewards differ; see `assign_advantages`."""
    units = _units(samples, options, [_to_go(sample, 0.0) for sample in samples])
    with_signal = (unit for unit, fate in zip(units, _fates(units, options)[1], strict=True) if fate == "signal")
    return {samples[i].group_uid or "" for unit in with_signal for i, _, _ in unit.tokens}


def staying(samples: Sequence[Sample], options: AdvantageOptions) -> tuple[list[Sample], dict[str, str]]:
    """Returns the samples that `assign_advantages` would keep in the batch, and the fate of each group (`group_fates`).

    For comparisons of whole episodes, ``normalise: all``; see `assign_advantages` for the errors.
    """
    units = _units(samples, options, [_to_go(sample, 0.0) for sample in samples])
    fates = group_fates(np.array([unit.reward for unit in units]), [unit.key for unit in units], options)
    kept = [s for s in samples if fates[s.group_uid or ""] == "signal" or not options.drop_zero_variance]
    return [s for s in kept if not (options.drop_overlong and s.overlong)], fates


def _fates(units: Sequence[_Unit], options: AdvantageOptions) -> tuple[list[str], list[str]]:
    """Returns each unit's fate in its group, and after units of too small a group went to the coarser one."""
    rewards = np.array([unit.reward for unit in units])
    by_key = group_fates(rewards, [unit.key for unit in units], options)
    fine = [by_key[unit.key] for unit in units]
    if "small" not in fine or options.normalise != "role-turn":
        return fine, fine
    coarse = group_fates(rewards, [unit.fallback for unit in units], options)
    return fine, [coarse[unit.fallback] if fate == "small" else fate for unit, fate in zip(units, fine, strict=True)]


def _compare(
    units: Sequence[_Unit], options: AdvantageOptions, with_penalties: bool = False
) -> tuple[Floats, list[str], GroupCounts]:
    """Returns each unit's advantage and fate, and the counts of groups; see `group_advantages`.

    With ``role-turn``, a unit whose group is too small is compared within its coarser fallback group.
    """
    rewards, searches = np.array([unit.reward for unit in units]), [unit.searches for unit in units]
    penalties = np.array([unit.penalty for unit in units]) if with_penalties else None

    def by(keys: Sequence[str]) -> tuple[Floats, GroupCounts]:
        return group_advantages(rewards, keys, options, searches=searches, penalties=penalties)

    advantages, counts = by([unit.key for unit in units])
    fine, fates = _fates(units, options)
    if fine is not fates:
        alone = np.array([fate == "small" for fate in fine])
        advantages = np.where(alone, by([unit.fallback for unit in units])[0], advantages)
    return advantages, fates, counts


def whiten_cells(values: Sequence[Floats], samples: Sequence[Sample], options: AdvantageOptions) -> list[Floats]:
    """Whitens the values of trained tokens within the cells that `AdvantageOptions.normalise` defines.

    A cell is the whole batch (``all``), the calls of one role (``role``), or those of one role and turn
    (``role-turn``). A cell of fewer than `min_group` calls is whitened with all calls of its role; if these too are
    fewer, its values become 0.

    Args:
        values: One (n,) float64 array per sample, one number per trained token.
        samples: The samples, in the same order.
        options: What is whitened together, and an estimator that is `Scaled`.

    Returns:
        Whitened values, of the shapes given.
    """
    estimator: Any = options.estimator
    if options.normalise == "all":
        return whiten(values, estimator.divisor)
    whitened = [np.zeros_like(row) for row in values]
    places = [(i, *place) for i, sample in enumerate(samples) for place in _call_tokens(sample)]
    fine, coarse = zip(*_cells(samples, options, [""] * len(samples)), strict=True) if places else ((), ())
    wide = members_of(coarse)
    for key, members in members_of(fine).items():
        cell = members if len(members) >= options.min_group else wide[coarse[members[0]]]
        if len(cell) >= options.min_group:
            white = whiten([values[i][start:end] for i, start, end in (places[m] for m in cell)], estimator.divisor)
            for m, row in zip(cell, white, strict=True):
                i, start, end = places[m]
                if fine[m] == key:  # the wider cell holds calls of other turns, which have cells of their own
                    whitened[i][start:end] = row
    return whitened


def _to_go(sample: Sample, kl_coef: float) -> Floats:
    """Returns, for each trained token, the sum of KL penalties from that token on, (n,) float64."""
    if not kl_coef:
        return np.zeros(int(sample.mask.sum()))
    return np.cumsum(kl_coef * k1_of(sample)[::-1])[::-1]


def _units(samples: Sequence[Sample], options: AdvantageOptions, to_go: Sequence[Floats]) -> list[_Unit]:
    """Returns the units to compare, in the order of the samples; see `assign_advantages` for the errors."""
    _check_groups(samples)
    batch = options.estimator.over_batch
    if options.normalise != "all":
        keys = iter(_cells(samples, options, [BATCH if batch else s.group_uid or "" for s in samples]))
        units, returns = [], call_returns(samples, options)
        for i, sample in enumerate(samples):
            for (start, end), reward in zip(_call_tokens(sample), returns[i], strict=True):
                penalty = float(to_go[i][start])
                units.append(_Unit(*next(keys), reward, penalty, sample.searches, ((i, start, end),)))
        return units
    episodes: dict[tuple[str, str], list[int]] = {}
    for i, sample in enumerate(samples):
        episodes.setdefault((sample.group_uid or "", sample.episode_id), []).append(i)
    return [_whole(key, indices, samples, to_go, batch) for key, indices in episodes.items()]


def call_returns(samples: Sequence[Sample], options: AdvantageOptions) -> list[list[float]]:
    """Returns the return of each call: its own reward and those passed back to it from later calls.

    Args:
        samples: Every sequence of the episodes, those of frozen model keys too.
        options: `chain`.

    Returns:
        One list per sample with one number per call, in the order of `Sample.calls`.
    """
    if options.chain == "call":
        to_go = [np.cumsum(sample.reward[::-1].astype(np.float64))[::-1] for sample in samples]
        return [[float(own[call.start]) for call in sample.calls] for sample, own in zip(samples, to_go, strict=True)]
    returns = [[float(sample.reward[call.end - 1]) for call in sample.calls] for sample in samples]
    if options.chain == "none":
        return returns
    for places in calls_of_episodes(samples):
        later = 0.0
        for i, j in reversed(places):
            last = samples[i].calls[j].end - 1
            returns[i][j] += later
            kept = samples[i].kept
            later += float(samples[i].reward[last]) - (0.0 if kept is None else float(kept[last]))
    return returns


def calls_of_episodes(samples: Sequence[Sample]) -> list[list[tuple[int, int]]]:
    """Returns the calls of each episode in the order in which they were made, trial answers left out.

    Returns:
        One list per episode with (index of the sample, index in its `Sample.calls`) of each call.
    """
    episodes: dict[tuple[str | None, str], list[tuple[int, int, int]]] = {}
    for i, sample in enumerate(samples):
        own = episodes.setdefault((sample.group_uid, sample.episode_id), [])
        own += [(call.index, i, j) for j, call in enumerate(sample.calls) if not call.prefix]
    return [[(i, j) for _, i, j in sorted(places)] for places in episodes.values()]


def _whole(
    key: tuple[str, str], indices: Sequence[int], samples: Sequence[Sample], to_go: Sequence[Floats], batch: bool
) -> _Unit:
    """Returns a whole episode as one unit, given its (group, episode id) and the indices of its samples."""
    rewards = [float(samples[i].reward[samples[i].mask].sum()) for i in indices]
    if min(rewards) != max(rewards):
        different = f"rewards of its sequences differ ({min(rewards):g} to {max(rewards):g})"
        raise DataError(
            f"episode {key[1]}: {different}, and episodes are compared as wholes: set advantage.normalise to role"
        )
    penalty = sum(float(to_go[i][0]) for i in indices if len(to_go[i]))
    tokens = tuple((i, 0, len(to_go[i])) for i in indices)
    group = BATCH if batch else key[0]
    return _Unit(group, group, rewards[0], penalty, samples[indices[0]].searches, tokens)


def _cells(samples: Sequence[Sample], options: AdvantageOptions, groups: Sequence[str]) -> list[tuple[str, str]]:
    """Returns two keys per call: fine (group, role and, as `normalise` says, turn or query) and coarse (without)."""
    calls = [(group, call) for sample, group in zip(samples, groups, strict=True) for call in sample.calls]
    coarse = [f"{group} {call.role}" for group, call in calls]
    fine = [f" {call.turn}" if options.normalise == "role-turn" else "" for _, call in calls]
    for members in members_of(coarse).values() if options.normalise == "query" else ():
        queries = {i: query for i in members if (query := calls[i][1].query) is not None}
        for i, number in zip(queries, alike(list(queries.values()), options.query_overlap), strict=True):
            fine[i] = f" query {number}"
    return [(role + own, role) for role, own in zip(coarse, fine, strict=True)]


def _call_tokens(sample: Sample) -> list[tuple[int, int]]:
    """Returns the (start, end) of each call of a sample, counted in trained tokens."""
    before = np.concatenate([[0], np.cumsum(sample.mask)])
    return [(int(before[call.start]), int(before[call.end])) for call in sample.calls]


def _check_groups(samples: Sequence[Sample]) -> None:
    """Raises a DataError if a sample has no group, or a group mixes questions."""
    questions: dict[str, str] = {}
    for sample in samples:
        if sample.group_uid is None:
            raise DataError(f"episode {sample.episode_id} has no group_uid: set it where the attempts are drawn")
        if questions.setdefault(sample.group_uid, sample.question_id) != sample.question_id:
            both = f"{questions[sample.group_uid]!r} and {sample.question_id!r}"
            raise DataError(f"group {sample.group_uid!r} holds questions {both}: a group is one question")


def k1_of(sample: Sample) -> Floats:
    """Returns ``old_logp - ref_logp`` of each trained token, (n,) float64; the mean estimates the KL to the reference.

    Raises:
        DataError: The sample lacks `old_logp` or `ref_logp`.
    """
    if sample.old_logp is None or sample.ref_logp is None:
        raise DataError(f"episode {sample.episode_id}: KL in the reward needs old_logp and ref_logp")
    return (sample.old_logp[sample.mask] - sample.ref_logp[sample.mask]).astype(np.float64)


def with_advantage(sample: Sample, values: Floats) -> Sample:
    """Returns a copy of the sample with the given (n,) advantages on its mask and 0 elsewhere."""
    advantage = np.zeros(len(sample.ids), np.float32)
    advantage[sample.mask] = values.astype(np.float32)
    return dataclasses.replace(sample, advantage=advantage)
