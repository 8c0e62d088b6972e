"""Advantages: one number per trained token, computed by comparing the rewards of episodes.

`assign_advantages` applies an estimator of `searchgym.train.algorithms.estimators` to each group and sets the
advantages of the samples. Rules for all estimators that compare:

* *Without signal.* A group whose rewards are all equal gets exactly 0, and so does a group smaller than `min_group`
  (Search-R1 sets mean 0 and deviation 1 there, which lets the raw reward through). Both are counted, and
  `drop_zero_variance` removes them from the batch. For ``reinforce-pp`` the whole batch is the group. Groups of equal
  rewards that stay in the batch of ``reinforce-pp-baseline`` have 0 before the batch's mean is subtracted.
* *KL in the reward.* The return is ``r - kl_coef * sum of k1``, over the episode's trained tokens; ``reinforce-pp``
  charges each token the k1 of its sequence from that token on. Whether a group has signal depends on the reward alone:
  otherwise the standard deviation would turn KL differences of any size into advantages around 1.
* *What is compared.* With ``normalise: all``, an episode counts once in its group, however many sequences it has, and
  must have a single reward. If each call has a reward, calls are compared with calls of the same role (``normalise:
  role``), or of the same role and turn (``role-turn``): a call's return is its own reward plus the rewards of later
  calls in its sequence, not of other sequences. A call with fewer than `min_group` calls to compare with in its turn is
  compared with all calls of its role in the group; if these too are fewer, its advantage is 0. With ``normalise:
  query`` calls that ranked a search's hits are compared with calls of their role in the group that ranked hits of
  similar queries (`searchgym.scoring.ranking.alike`), in any attempt or turn; if fewer than `min_group` are similar,
  their advantage is 0. Other calls are compared as with ``role``. Source: CoSearch, arXiv 2604.17555 (overlap 0.8,
  groups of at least 3). Deviation: CoSearch also separates queries whose candidates contain the answer from the others.
* *How far rewards go back.* With ``chain: episode`` (ours), a call's return is its own reward plus those of all later
  calls of the episode, in any sequence, role or model key, except rewards that stay with their call
  (`Sample.local_reward`) and trial answers. With the credit term ``gain`` that is ``s_T - s_before + own penalty``: the
  last answer's score minus the score before the call, which the call could not change. Compared with calls of other
  episodes only (``rloo``, ``normalise: role-turn``), the expected gradient is that of the last answer's score; with
  ``role``, a role that acts twice is also compared with its own later call. With ``chain: none`` a call's return is its
  own reward, as in VPR.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.scoring.ranking import alike
from searchgym.train.algorithms.estimator import (
    AdvantageOptions,
    Estimator,
    Floats,
    GroupCounts,
    group_advantages,
    group_fates,
    members_of,
    whiten,
)
from searchgym.train.algorithms.samples import Sample, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing(Estimator):
    """Base class of estimators that define `compare`, which computes the advantages of one group."""

    @override
    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        return assign_advantages(samples, options, kl_coef)


class _Comparand(NamedTuple):
    """One item of a comparison: a whole episode, or one call."""

    key: str
    """Group key; items with equal keys are compared with each other."""
    fallback: str
    """Coarser group key, used if `key` has too few items."""
    tokens: tuple[tuple[int, int, int], ...]
    """(sample index, start, end): a half-open range over the sample's trained tokens."""
    reward: float = 0.0
    penalty: float = 0.0
    """KL penalty, subtracted from the reward."""
    searches: int = 0


def assign_advantages(
    samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float = 0.0
) -> tuple[list[Sample], GroupCounts]:
    """Sets the advantages of a batch of samples.

    Args:
        samples: All sequences of all episodes in the compared groups, with `old_logp` and `ref_logp` if `kl_coef` is
            above 0.
        options: See `group_advantages`. `drop_zero_variance` drops the sequences of groups without signal,
            `drop_overlong` those of overlong episodes, after the comparison with their group.
        kl_coef: Weight of the KL penalty in the reward.

    Returns:
        The samples in the same order, with advantages set on their masks; and the counts of groups by outcome.

    Raises:
        DataError: A sample has no group, a group has several questions, or sequences of one episode have different
            rewards although whole episodes are compared.
    """
    estimator = options.estimator
    to_go = [np.zeros(int(sample.mask.sum())) for sample in samples]  # KL penalties from each token on
    if kl_coef:
        to_go = [np.cumsum(kl_coef * k1_of(sample)[::-1])[::-1] for sample in samples]
    units = _units(samples, options, to_go)
    rewards, searches = np.array([unit.reward for unit in units]), [unit.searches for unit in units]
    with_penalties = kl_coef and not estimator.kl_by_token
    penalties = np.array([unit.penalty for unit in units]) if with_penalties else None

    def compared(keys: Sequence[str]) -> tuple[Floats, GroupCounts]:
        return group_advantages(rewards, keys, options, searches=searches, penalties=penalties)

    advantages, counts = compared([unit.key for unit in units])
    fine, fates = _fates(units, options)
    if fine is not fates:
        alone = np.array([fate == "small" for fate in fine])
        advantages = np.where(alone, compared([unit.fallback for unit in units])[0], advantages)
    if options.rescale == "batch":
        with_signal = np.array([fate == "signal" for fate in fates], np.bool_)
        advantages[with_signal] = whiten([advantages[with_signal]], lambda row: float(row.std()) + 1e-6)[0]
    values = [np.zeros(len(kl)) for kl in to_go]
    signal, large = set[int](), set[int]()  # samples with a token in a group with signal, in a large enough group
    for unit, advantage, fate in zip(units, advantages, fates, strict=True):
        for i, start, end in unit.tokens:
            values[i][start:end] = advantage
            if fate == "signal" and estimator.kl_by_token:  # subtract the k1 from the token on
                values[i][start:end] -= to_go[i][start:end]
        indices = {i for i, _, _ in unit.tokens}
        signal |= indices if fate == "signal" else set()
        large |= indices if fate != "small" else set()
    remaining = [i for i in range(len(samples)) if i in signal or not options.drop_zero_variance]
    if estimator.whitens:
        whitened = [i for i in remaining if i in large]
        white = whiten_cells([values[i] for i in whitened], [samples[i] for i in whitened], options)
        for i, row in zip(whitened, white, strict=True):
            values[i] = row
        for unit in (unit for unit, fate in zip(units, fates, strict=True) if fate == "small"):
            for i, start, end in unit.tokens:  # compared with nothing: exactly 0
                values[i][start:end] = 0
    remaining = [i for i in remaining if not (options.drop_overlong and samples[i].overlong)]
    return [with_advantage(samples[i], values[i]) for i in remaining], counts


def groups_with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str]:
    """Returns the keys of the groups that are large enough and whose rewards differ; see `assign_advantages`."""
    return {group for group, fate in fates_of(samples, options).items() if fate == "signal"}


def fates_of(samples: Sequence[Sample], options: AdvantageOptions) -> dict[str, str]:
    """Returns the outcome of each group (`group_fates`): ``"signal"`` if a comparison within it has signal."""
    units, fates = _units(samples, options, [np.zeros(len(sample.ids)) for sample in samples]), dict[str, str]()
    for unit, fate in zip(units, _fates(units, options)[1], strict=True):
        for i, _, _ in unit.tokens:
            group = samples[i].group_uid or ""
            fates[group] = "signal" if "signal" in (fate, fates.get(group)) else fate
    return fates


def _fates(units: Sequence[_Comparand], options: AdvantageOptions) -> tuple[list[str], list[str]]:
    """Returns each unit's outcome in its group, and the outcome after units of small groups move to coarser groups."""
    rewards = np.array([unit.reward for unit in units])
    by_key = group_fates(rewards, [unit.key for unit in units], options)
    fine = [by_key[unit.key] for unit in units]
    if "small" not in fine or options.normalise != "role-turn":
        return fine, fine
    coarse = group_fates(rewards, [unit.fallback for unit in units], options)
    return fine, [coarse[unit.fallback] if fate == "small" else fate for unit, fate in zip(units, fine, strict=True)]


def whiten_cells(values: Sequence[Floats], samples: Sequence[Sample], options: AdvantageOptions) -> list[Floats]:
    """Whitens the values of trained tokens within the cells that `AdvantageOptions.normalise` defines.

    A cell is the whole batch (``all``), the calls of one role (``role``), or those of one role and turn
    (``role-turn``). A cell of fewer than `min_group` calls is whitened with all calls of its role; if these too are
    fewer, its values become 0.

    Args:
        values: One (n,) float64 array per sample, one number per trained token; returned in the same shapes.
        samples: The samples, in the same order.
        options: Units that are whitened together, and a `Scaled` estimator.
    """
    estimator: Any = options.estimator
    if options.normalise == "all":
        return whiten(values, estimator.divisor)
    whitened = [np.zeros_like(row) for row in values]
    calls = _calls(samples, options, [""] * len(samples))
    of_role = members_of([call.fallback for call in calls])
    for key, members in members_of([call.key for call in calls]).items():
        cell = members if len(members) >= options.min_group else of_role[calls[members[0]].fallback]
        if len(cell) < options.min_group:
            continue
        tokens = [calls[m].tokens[0] for m in cell]
        white = whiten([values[i][start:end] for i, start, end in tokens], estimator.divisor)
        for m, (i, start, end), row in zip(cell, tokens, white, strict=True):
            if calls[m].key == key:  # a role's cell also contains calls of other turns, whose cells differ
                whitened[i][start:end] = row
    return whitened


def _units(samples: Sequence[Sample], options: AdvantageOptions, to_go: Sequence[Floats]) -> list[_Comparand]:
    """Returns the units to compare, in the order of the samples; see `assign_advantages` for the errors."""
    questions: dict[str, str] = {}
    groups = []
    for sample in samples:
        if (group := sample.group_uid) is None:
            raise DataError(f"episode {sample.episode_id} has no group_uid: set it when the attempts are sampled")
        if questions.setdefault(group, sample.question_id) != sample.question_id:
            both = f"{questions[group]!r} and {sample.question_id!r}"
            raise DataError(f"group {group!r} has questions {both}: a group has one question")
        groups.append("" if options.estimator.over_batch else group)
    if options.normalise != "all":
        units = _calls(samples, options, groups)
        for n, reward in enumerate(itertools.chain.from_iterable(call_returns(samples, options))):
            ((i, start, _),) = units[n].tokens
            units[n] = units[n]._replace(reward=reward, penalty=float(to_go[i][start]), searches=samples[i].searches)
        return units
    units = []
    for members in members_of([(sample.group_uid, sample.episode_id) for sample in samples]).values():
        first, rewards = samples[members[0]], [float(samples[i].reward[samples[i].mask].sum()) for i in members]
        if min(rewards) != max(rewards):
            raise DataError(
                f"episode {first.episode_id}: rewards of its sequences differ ({min(rewards):g} to {max(rewards):g}), "
                "and whole episodes are compared: set advantage.normalise to role"
            )
        penalty = sum(float(to_go[i][0]) for i in members if len(to_go[i]))
        tokens = tuple((i, 0, len(to_go[i])) for i in members)
        group = groups[members[0]]
        units.append(_Comparand(group, group, tokens, rewards[0], penalty, first.searches))
    return units


def call_returns(samples: Sequence[Sample], options: AdvantageOptions) -> list[list[float]]:
    """Returns the return of each call: its own reward plus the rewards passed back from later calls.

    Returns one list per sample (`samples` must include all sequences of an episode, also of frozen model keys), with
    one number per call in the order of `Sample.calls`.
    """
    if options.chain == "call":
        to_go = [np.cumsum(sample.reward[::-1].astype(np.float64))[::-1] for sample in samples]
        return [[float(row[call.start]) for call in sample.calls] for sample, row in zip(samples, to_go, strict=True)]
    returns = [[float(sample.reward[call.end - 1]) for call in sample.calls] for sample in samples]
    if options.chain == "none":
        return returns
    for calls in calls_of_episodes(samples):
        later = 0.0
        for i, j in reversed(calls):
            last = samples[i].calls[j].end - 1
            returns[i][j] += later
            local = samples[i].local_reward
            later += float(samples[i].reward[last]) - (0.0 if local is None else float(local[last]))
    return returns


def calls_of_episodes(samples: Sequence[Sample]) -> list[list[tuple[int, int]]]:
    """Returns the calls of each episode in the order in which they were made, without trial answers.

    Returns one list per episode with (index of the sample, index in its `Sample.calls`) of each call.
    """
    episodes: dict[tuple[str | None, str], list[tuple[int, int, int]]] = defaultdict(list)
    for i, sample in enumerate(samples):
        calls = [(call.index, i, j) for j, call in enumerate(sample.calls) if not call.prefix]
        episodes[sample.group_uid, sample.episode_id] += calls
    return [[(i, j) for _, i, j in sorted(calls)] for calls in episodes.values()]


def _calls(samples: Sequence[Sample], options: AdvantageOptions, groups: Sequence[str]) -> list[_Comparand]:
    """Returns the calls of samples as units without rewards, given the key of each sample's group."""
    calls = [(i, call) for i, sample in enumerate(samples) for call in sample.calls]
    coarse = [f"{groups[i]} {call.role}" for i, call in calls]
    fine = [f" {call.turn}" if options.normalise == "role-turn" else "" for _, call in calls]
    for members in members_of(coarse).values() if options.normalise == "query" else ():
        queries = {i: query for i in members if (query := calls[i][1].query) is not None}
        for i, number in zip(queries, alike(list(queries.values()), options.query_overlap), strict=True):
            fine[i] = f" query {number}"
    before = [np.concatenate([[0], np.cumsum(sample.mask)]) for sample in samples]
    return [
        _Comparand(role + more, role, ((i, int(before[i][call.start]), int(before[i][call.end])),))
        for (i, call), role, more in zip(calls, coarse, fine, strict=True)
    ]


def k1_of(sample: Sample) -> Floats:
    """Returns ``old_logp - ref_logp`` of each trained token, (n,) float64; the mean estimates the KL to the reference.

    Raises:
        DataError: The sample lacks `old_logp` or `ref_logp`.
    """
    if sample.old_logp is None or sample.ref_logp is None:
        raise DataError(f"episode {sample.episode_id}: KL in the reward needs old_logp and ref_logp")
    return (sample.old_logp[sample.mask] - sample.ref_logp[sample.mask]).astype(np.float64)


def with_advantage(sample: Sample, values: Floats) -> Sample:
    """Returns a copy of the sample with (n,) advantages on its mask and 0 elsewhere."""
    advantage = np.zeros(len(sample.ids), np.float32)
    advantage[sample.mask] = values.astype(np.float32)
    return dataclasses.replace(sample, advantage=advantage)
