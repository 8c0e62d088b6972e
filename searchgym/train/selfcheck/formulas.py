"""The formulas of a training step a second time, written from their definitions.

Nothing here is shared with `searchgym.train.algorithms`: a fault there must not repeat itself in what it is compared
with. Slow and plain on purpose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.records import Call, Episode
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import AdvantageOptions, CreditOptions, LossOptions

Floats = npt.NDArray[np.float64]
Score = Callable[[Episode, str], float]
"""Function from an episode and an answer text to the environment's reward for that answer."""

# -- credit --------------------------------------------------------------------------------------------------------


def call_rewards(
    episode: Episode,
    sequences: Sequence[Sequence[int]],
    options: CreditOptions,
    penalties: Mapping[str, float],
    score: Score,
) -> list[float]:
    """Returns the reward of each call of an episode, the built-in terms of `CreditOptions.terms` added up.

    Args:
        episode: A finished episode.
        sequences: Indices of the calls that continue each other, one list per training sequence.
        options: Names and coefficients of the terms.
        penalties: Penalty of each role for an illegal output.
        score: Scores an answer text.
    """
    calls, total = episode.calls, np.zeros(len(episode.calls))
    acting = [i for i, call in enumerate(calls) if not call.prefix]
    if "outcome" in options.terms:
        lasts = [max(own) for sequence in sequences if (own := [i for i in sequence if i in acting])]
        total[lasts] += episode.reward
    if "format" in options.terms:
        total += [0.0 if call.legal else penalties.get(call.role, 0.0) for call in calls]
    if "costs" in options.terms:
        rounds = min(max(episode.notes.get("rounds", episode.turns) - 1, 0), 3)
        total[acting] -= (options.turn_cost * rounds + options.search_cost * min(len(episode.searches), 3)) / 3
    if "difference" in options.terms:
        scores = {i: score(episode, calls[i].answer or "") for i in acting if calls[i].answer is not None}
        total[acting] += [_difference(i, scores) for i in acting]
    if "praise" in options.terms:
        total += _praise(episode, acting, options.alpha, score)
    return [float(value) for value in total]


def _difference(call: int, scores: Mapping[int, float]) -> float:
    """Returns a call's reward from the scores of the calls that propose answers."""
    if call in scores:
        return scores[call]
    earlier = [value for proposal, value in scores.items() if proposal < call]
    later = [value for proposal, value in scores.items() if proposal > call]
    return later[0] - (earlier[-1] if earlier else 0.0) if later else 0.0


def _praise(episode: Episode, acting: Sequence[int], alpha: float, score: Score) -> Floats:
    """Returns the rewards of trial answers, and of the last call before each of them but the first."""
    total, trials = np.zeros(len(episode.calls)), [i for i, call in enumerate(episode.calls) if call.prefix]
    total[trials] = values = [score(episode, episode.calls[i].answer or "") for i in trials]
    for t in range(1, len(trials)):
        between = [i for i in acting if trials[t - 1] < i < trials[t]]
        total[between[-1:]] += alpha * (values[t] - values[t - 1])
    return total


def continued(calls: Sequence[Call], ends: Mapping[int, bytes], starts: Mapping[int, bytes]) -> list[list[int]]:
    """Groups an episode's calls into training sequences, by what their models were asked.

    A call goes on with the sequence of the latest call whose prompt and response its own prompt begins with, unless
    another call went on with it before. Trial answers open a sequence of their own, which no call goes on with.

    Args:
        calls: The calls of an episode.
        ends: Prompt and response of each call that has tokens, as bytes, by the call's index.
        starts: Prompt of each such call, as bytes.
    """
    sequences: list[list[int]] = []
    taken: set[int] = set()
    for i in sorted(starts, key=lambda i: (calls[i].context, i)):
        seen = [j for j in ends if j != i and not calls[j].prefix and starts[i].startswith(ends[j])]
        parent = max(seen, key=lambda j: len(ends[j]), default=None)
        if parent is None or parent in taken or calls[i].prefix:
            sequences.append([i])
            continue
        taken.add(parent)
        next(row for row in sequences if parent in row).append(i)
    return sequences


# -- advantages ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Unit:
    """What is compared: an episode, or a call; `places` are (sample, first, end) over trained tokens."""

    group: tuple[str, ...]
    wide: tuple[str, ...]
    reward: float
    penalty: float
    searches: int
    places: list[tuple[int, int, int]]
    value: float = 0.0
    fate: str = "signal"


def group_advantages(samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float) -> list[Floats | None]:
    """Returns the advantages of each sample's trained tokens by comparison of rewards; None where it is left out."""
    k1 = [kl_coef * _k1(s) if kl_coef else np.zeros(int(s.mask.sum())) for s in samples]
    by_token = options.estimator == "reinforce++"
    units = _units(samples, options, k1)
    for unit in units:
        same = [other for other in units if other.group == unit.group]
        if len(same) < options.min_group and options.normalise == "role-turn":
            same = [other for other in units if other.wide == unit.wide]
        _compare(unit, same, options, by_token)
    values = [np.zeros(len(row)) for row in k1]
    for unit in units:
        for i, first, end in unit.places:
            values[i][first:end] = unit.value
            if by_token and unit.fate == "signal":
                values[i][first:end] -= [k1[i][t:].sum() for t in range(first, end)]
    fates: dict[int, set[str]] = defaultdict(set)
    for unit in units:
        for i, _, _ in unit.places:
            fates[i].add(unit.fate)
    stays = {i for i in range(len(samples)) if "signal" in fates[i] or not options.drop_zero_variance}
    if options.estimator.startswith("reinforce++"):
        white = whitened(samples, values, options, {i for i in stays if fates[i] != {"small"}})
        for i in white:
            values[i] = white[i]
        for unit in units:
            for i, first, end in unit.places if unit.fate == "small" else ():
                values[i][first:end] = 0
    return [
        values[i] if i in stays and not (options.drop_overlong and s.overlong) else None for i, s in enumerate(samples)
    ]


def _units(samples: Sequence[Sample], options: AdvantageOptions, k1: Sequence[Floats]) -> list[_Unit]:
    """Returns what is compared with each other; all questions form one group for ``reinforce++``."""
    units: list[_Unit] = []
    whole: dict[tuple[str, str], _Unit] = {}
    for i, sample in enumerate(samples):
        group = "" if options.estimator == "reinforce++" else str(sample.group_uid)
        if options.normalise == "all":
            unit = whole.get((group, sample.episode_id))
            if unit is None:
                reward = float(sample.reward.astype(np.float64).sum())
                unit = whole[group, sample.episode_id] = _Unit((group,), (group,), reward, 0.0, sample.searches, [])
                units.append(unit)
            unit.penalty += float(k1[i].sum())
            unit.places.append((i, 0, len(k1[i])))
            continue
        for call in sample.calls:
            first, end = int(sample.mask[: call.start].sum()), int(sample.mask[: call.end].sum())
            turn = (str(call.turn),) if options.normalise == "role-turn" else ()
            reward = float(sample.reward[call.start :].astype(np.float64).sum())
            wide = (group, call.role)
            units.append(
                _Unit((*wide, *turn), wide, reward, float(k1[i][first:].sum()), sample.searches, [(i, first, end)])
            )
    return units


def _compare(unit: _Unit, same: Sequence[_Unit], options: AdvantageOptions, by_token: bool) -> None:
    """Sets a unit's advantage from those it is compared with, itself among them."""
    rewards = np.array([other.reward for other in same])
    if len(same) < options.min_group:
        unit.fate = "small"
    elif np.ptp(rewards) < 1e-6:
        unit.fate = "equal"
    if unit.fate != "signal":
        return
    returns = np.array([other.reward - (0.0 if by_token else other.penalty) for other in same])
    mine, mean = unit.reward - (0.0 if by_token else unit.penalty), returns.mean()
    if options.estimator == "grpo":
        unit.value = (mine - mean) / deviation(returns, options)
    elif options.estimator == "rloo":
        unit.value = mine - (returns.sum() - mine) / (len(returns) - 1)
    elif options.estimator == "reinforce++-baseline":
        unit.value = mine - mean
    elif options.estimator == "reinforce++":
        unit.value = mine
    else:
        alike = np.array([other.searches == unit.searches for other in same])
        wide = near = (mine - mean) / deviation(returns, options)
        if alike.sum() > 1:
            equal = np.ptp(rewards[alike]) < 1e-6
            near = 0.0 if equal else (mine - returns[alike].mean()) / deviation(returns[alike], options)
        unit.value = options.alpha * near + (1 - options.alpha) * wide


def deviation(values: Floats, options: AdvantageOptions) -> float:
    """Returns what centred values are divided by."""
    if options.std == "none":
        return 1.0
    squares = float(((values - values.mean()) ** 2).sum())
    spread = math.sqrt(squares / (len(values) - (options.std == "sample")))
    return max(spread, options.std_floor) + options.eps


def gae_advantages(
    samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float, through_observations: bool
) -> list[tuple[Floats, Floats] | None]:
    """Returns (advantages of the trained tokens, returns of all tokens) by GAE; None where a sample is left out."""
    raw: list[Floats] = []
    returns: list[Floats] = []
    for sample in samples:
        assert sample.value is not None
        trained = np.flatnonzero(sample.mask)
        chain = np.arange(trained[0], trained[-1] + 1) if through_observations else trained
        reward = np.zeros(len(sample.ids))
        reward[trained] = sample.reward[trained]
        if kl_coef:
            reward[trained] -= kl_coef * _k1(sample)
        value = sample.value[chain].astype(np.float64)
        delta = reward[chain] + options.gamma * np.append(value[1:], 0.0) - value
        apart = np.arange(len(chain))[None] - np.arange(len(chain))[:, None]
        advantage = np.where(apart >= 0, (options.gamma * options.lam) ** np.maximum(apart, 0), 0.0) @ delta
        spread, target = np.zeros(len(sample.ids)), np.zeros(len(sample.ids))
        spread[chain], target[chain] = advantage, advantage + value
        raw.append(spread[trained])
        returns.append(target)
    if options.whiten:
        white = whitened(samples, raw, options, set(range(len(samples))))
        raw = [white[i] for i in range(len(samples))]
    dropped = [options.drop_overlong and sample.overlong for sample in samples]
    return [None if out else (a, r) for out, a, r in zip(dropped, raw, returns, strict=True)]


def whitened(
    samples: Sequence[Sample], values: Sequence[Floats], options: AdvantageOptions, taking_part: set[int]
) -> dict[int, Floats]:
    """Returns the values of some samples, centred and divided by their deviation within cells of tokens."""
    cells: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    wide: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for i in taking_part:
        if options.normalise == "all":
            cells[()].append((i, 0, len(values[i])))
            continue
        for call in samples[i].calls:
            place = (i, int(samples[i].mask[: call.start].sum()), int(samples[i].mask[: call.end].sum()))
            turn = (str(call.turn),) if options.normalise == "role-turn" else ()
            cells[call.role, *turn].append(place)
            wide[(call.role,)].append(place)
    made = {i: np.zeros(len(values[i])) for i in taking_part}
    for name, places in cells.items():
        with_whom = places
        if options.normalise != "all" and len(places) < options.min_group:
            with_whom = wide[name[:1]]
            if len(with_whom) < options.min_group:
                continue
        every = np.concatenate([values[i][first:end] for i, first, end in with_whom])
        if len(every) and np.ptp(every) > 1e-9:
            for i, first, end in places:
                made[i][first:end] = (values[i][first:end] - every.mean()) / deviation(every, options)
    return made


def _k1(sample: Sample) -> Floats:
    """Returns ``log pi - log pi_ref`` of the trained tokens."""
    assert sample.old_logp is not None
    assert sample.ref_logp is not None
    return (sample.old_logp.astype(np.float64) - sample.ref_logp.astype(np.float64))[sample.mask]


# -- weights of tokens in the loss ---------------------------------------------------------------------------------


def shares(samples: Sequence[Sample], counts: Sequence[int], options: LossOptions) -> list[float]:
    """Returns the share of the loss that each token of a sample has, one number per sample with `counts` tokens."""
    total = sum(counts)
    if options.reduction == "token-mean":
        return [1 / total for _ in samples]
    if options.reduction == "sequence-mean":
        return [1 / (n * len(samples)) for n in counts]
    if options.reduction == "episode-mean":
        of_episode: dict[str, int] = defaultdict(int)
        for sample, n in zip(samples, counts, strict=True):
            of_episode[sample.episode_id] += n
        return [1 / (of_episode[sample.episode_id] * len(of_episode)) for sample in samples]
    assert options.constant_length is not None
    return [1 / (len(samples) * options.constant_length) for _ in samples]
