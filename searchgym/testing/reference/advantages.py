"""Second implementation of the advantages of a training step, written from their definitions.

No code is shared with `searchgym.train.algorithms`, so that a fault there is not repeated here. The code is slow and
plain on purpose.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.options import kind_name
from searchgym.scoring import normalise_answer
from searchgym.testing.reference import trees
from searchgym.train.algorithms.estimator import AdvantageOptions
from searchgym.train.algorithms.samples import Sample, SampleCall

Floats = npt.NDArray[np.float64]
Piece = tuple[int, SampleCall | None, int, int, tuple[str, ...]]
"""(Index of the sample, call, start and end among the sample's trained tokens, name of the turn) of a compared unit."""


OVER_TREES: Final = ("shaped", "deepsearch")
"""Estimators whose formulas `trees` has."""


@dataclass(slots=True)
class _Unit:
    """A compared unit: an episode or a call; `spans` are (sample index, start, end) over trained tokens."""

    group: tuple[str, ...]
    wide: tuple[str, ...]
    reward: float
    penalty: float
    searches: int
    spans: list[tuple[int, int, int]]
    value: float = 0.0
    fate: str = "signal"


def group_advantages(samples: Sequence[Sample], options: AdvantageOptions, kl_coef: float) -> list[Floats | None]:
    """Compares rewards within groups, and returns the advantages of each sample, one per trained token.

    The element is None for a sample that `options` exclude: one without a signal, or an overlong one.
    """
    k1 = [kl_coef * k1_of(s) if kl_coef else np.zeros(int(s.mask.sum())) for s in samples]
    estimator: Any = options.estimator
    if (kind := kind_name(estimator)) == "stages":
        return _by_stage(samples, options)
    units = _compared(samples, options, k1)
    values = [np.zeros(len(row)) for row in k1]
    for unit in units:
        for i, first, end in unit.spans:
            values[i][first:end] = unit.value
            if kind == "reinforce-pp" and unit.fate == "signal":
                values[i][first:end] -= [k1[i][t:].sum() for t in range(first, end)]
    if kind == "tree":
        values = [_branches(i, samples, units, estimator.shared) for i in range(len(samples))]
    if kind in ("siblings", "gigpo"):
        values = [_by_call(i, samples, units, estimator) for i in range(len(samples))]
    if kind in OVER_TREES:
        values = [_by_tree(i, samples, units, estimator) for i in range(len(samples))]
    fates = {i: {unit.fate for unit in units if any(p[0] == i for p in unit.spans)} for i in range(len(samples))}
    stays = {i for i in range(len(samples)) if "signal" in fates[i] or not options.drop_zero_variance}
    if kind.startswith("reinforce-pp"):
        white = whitened(samples, values, options, {i for i in stays if fates[i] != {"small"}})
        for i in white:
            values[i] = white[i]
        for unit in units:
            for i, first, end in unit.spans if unit.fate == "small" else ():
                values[i][first:end] = 0
    stays -= {i for i, sample in enumerate(samples) if options.drop_overlong and sample.overlong}
    return [row if i in stays else None for i, row in enumerate(values)]


def with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str | None]:
    """Returns the uids of the groups with a training signal, that is, with rewards that differ."""
    units = _compared(samples, options, [np.zeros(int(s.mask.sum())) for s in samples])
    return {samples[span[0]].group_uid for unit in units if unit.fate == "signal" for span in unit.spans}


def _compared(samples: Sequence[Sample], options: AdvantageOptions, k1: Sequence[Floats]) -> list[_Unit]:
    """Returns the compared units, each with its advantage."""
    units = _units(samples, options, k1)
    for unit in units:
        same = [other for other in units if other.group == unit.group]
        if len(same) < options.min_group and options.normalise == "role-turn":
            same = [other for other in units if other.wide == unit.wide]
        _compare(unit, same, options)
    compared = np.array([unit.value for unit in units if unit.fate == "signal"])
    for unit in units if options.rescale == "batch" else ():
        unit.value = (unit.value - compared.mean()) / (compared.std() + 1e-6) if unit.fate == "signal" else 0.0
    return units


def _pieces(samples: Sequence[Sample], options: AdvantageOptions) -> Iterator[Piece]:
    """Yields the calls to compare, or whole samples if ``normalise`` is ``all``."""
    for i, sample in enumerate(samples):
        if options.normalise == "all":
            yield i, None, 0, int(sample.mask.sum()), ()
            continue
        for call in sample.calls:
            turn = (str(call.turn),) if options.normalise == "role-turn" else ()
            yield i, call, int(sample.mask[: call.start].sum()), int(sample.mask[: call.end].sum()), turn


def _units(samples: Sequence[Sample], options: AdvantageOptions, k1: Sequence[Floats]) -> list[_Unit]:
    """Returns the units to compare, without advantages; for ``reinforce-pp``, all questions form one group."""
    units: list[_Unit] = []
    whole: dict[tuple[str, str], _Unit] = {}
    leaders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for i, call, first, end, turn in _pieces(samples, options):
        sample = samples[i]
        group = "" if kind_name(options.estimator) == "reinforce-pp" else str(sample.group_uid)
        if call is None:
            reward = float(sample.reward.astype(np.float64).sum())
            new = _Unit((group,), (group,), reward, 0.0, sample.searches, [])
            unit = whole.setdefault((group, sample.episode_id), new)
            units += [] if unit.spans else [unit]
            unit.penalty += float(k1[i].sum())
            unit.spans.append((i, first, end))
            continue
        if options.normalise == "query" and call.query is not None:
            turn = (_leader(call.query, leaders[group, call.role], options.query_overlap),)
        reward = float(sample.reward[call.end - 1])
        if options.chain == "call":
            reward = float(sample.reward[call.start :].astype(np.float64).sum())
        elif options.chain == "episode":
            reward += _later(samples, sample, call)
        wide, penalty = (group, call.role), float(k1[i][first:].sum())
        units.append(_Unit((*wide, *turn), wide, reward, penalty, sample.searches, [(i, first, end)]))
    return units


def _leader(query: str, leaders: list[str], overlap: float) -> str:
    """Returns the first leader with the same words as a query, or enough of them; if none, the query becomes one."""
    words = normalise_answer(query).split()
    for leader in leaders:
        other = leader.split()
        common = (Counter(words) & Counter(other)).total()
        if sorted(other) == sorted(words) or (common and 2 * common / (len(words) + len(other)) >= overlap):
            return leader
    leaders.append(" ".join(words))
    return leaders[-1]


def _later(samples: Sequence[Sample], sample: Sample, call: SampleCall) -> float:
    """Returns the reward that later calls of the episode pass back to a call; 0 for a trial answer."""
    same = [other for other in samples if (other.group_uid, other.episode_id) == (sample.group_uid, sample.episode_id)]
    later = [
        (other, c) for other in same for c in other.calls if c.index > call.index and not call.prefix and not c.prefix
    ]
    ends = [(other, c.end - 1) for other, c in later]
    return sum(
        float(other.reward[at]) - (0.0 if other.local_reward is None else float(other.local_reward[at]))
        for other, at in ends
    )


def _by_stage(samples: Sequence[Sample], options: AdvantageOptions) -> list[Floats | None]:
    """Returns the advantages of stages, token by token; None for a sample without a stage with signal."""
    estimator: Any = options.estimator
    names, matrix = list(estimator.stages), estimator.matrix()
    of_role = {role: names.index(name) for name, roles in estimator.stages.items() for role in roles}
    calls = [(i, c) for i, sample in enumerate(samples) for c in sample.calls if not c.prefix]

    def gain(group: str | None, episode: str, stage: int) -> float | None:
        mine = [(i, c) for i, c in calls if (samples[i].group_uid, samples[i].episode_id) == (group, episode)]
        if not any(of_role[c.role] == stage for _, c in mine):
            return None
        weights = ((matrix[stage][of_role[c.role]], samples[i].reward[c.end - 1]) for i, c in mine)
        return float(sum(weight * float(reward) for weight, reward in weights))

    values, useful = [np.zeros(len(sample.ids)) for sample in samples], set[int]()
    for i, call in calls:
        sample, stage = samples[i], of_role[call.role]
        peers = {other.episode_id for other in samples if other.group_uid == sample.group_uid}
        gains = {peer: gain(sample.group_uid, peer, stage) for peer in peers}
        others = np.array([value for value in gains.values() if value is not None])
        if len(others) >= options.min_group and np.ptp(others) > 1e-6:
            mine = gains[sample.episode_id] or 0.0
            values[i][call.start : call.end] = (mine - others.mean()) / deviation(others, estimator)
            useful.add(i)
    stays = [
        (i in useful or not options.drop_zero_variance) and not (options.drop_overlong and sample.overlong)
        for i, sample in enumerate(samples)
    ]
    return [row[s.mask] if stay else None for row, s, stay in zip(values, samples, stays, strict=True)]


def _branches(i: int, samples: Sequence[Sample], units: Sequence[_Unit], shared: bool) -> Floats:
    """Returns TreeRL's process reward of each trained token: that of its call, or 0 in groups without signal."""
    current = next(unit for unit in units if any(span[0] == i for span in unit.spans))
    same = [unit for unit in units if unit.group == current.group]
    values = np.zeros(len(samples[i].ids))

    def began(unit: _Unit, beginning: Sequence[bytes]) -> bool:
        together = shared or unit is current or not beginning
        return together and _path(samples, unit)[: len(beginning)] == beginning

    for call in samples[i].calls if current.fate == "signal" else ():
        path = _path(samples, current, call.index)
        here = [unit.reward for unit in same if began(unit, path)]
        before = [unit.reward for unit in same if began(unit, path[:-1])]
        gained = 2 * np.mean(here) - np.mean([unit.reward for unit in same]) - np.mean(before)
        values[call.start : call.end] = gained / math.sqrt(len(here))
    return values[samples[i].mask]


def _path(samples: Sequence[Sample], unit: _Unit, until: int | None = None) -> list[bytes]:
    """Returns keys of an episode's calls (all tokens up to each call's end), in order, up to and including `until`."""
    calls = [(c.index, samples[i].ids[: c.end].tobytes()) for i, _, _ in unit.spans for c in samples[i].calls]
    return [seen for index, seen in sorted(calls) if until is None or index <= until]


def _by_call(i: int, samples: Sequence[Sample], units: Sequence[_Unit], estimator: Any) -> Floats:
    """Returns each trained token's advantage by ``siblings`` or ``gigpo``, 0 in groups without signal."""
    current = next(unit for unit in units if any(span[0] == i for span in unit.spans))
    same = [unit for unit in units if unit.group == current.group]
    values = np.zeros(len(samples[i].ids))
    for call in samples[i].calls if current.fate == "signal" else ():
        values[call.start : call.end] = current.value
        if kind_name(estimator) == "siblings":
            path = _path(samples, current, call.index)
            through: dict[bytes, list[float]] = defaultdict(list)
            for unit in same:
                other = _path(samples, unit)
                if len(other) >= len(path) and other[: len(path) - 1] == path[:-1]:
                    through[other[len(path) - 1]].append(unit.reward)
            others: Floats = np.array([float(np.mean(row)) for row in through.values()])
            mine = float(np.mean(through[path[-1]]))
        else:
            alike = [
                (unit, c, _discounted(samples, unit, c, estimator.gamma))
                for unit in same
                for j, _, _ in unit.spans
                for c in samples[j].calls
                if c.state == call.state and not c.prefix
            ]
            others = np.array([value for *_, value in alike])
            mine = next(value for unit, c, value in alike if unit is current and c.index == call.index)
        if len(others) > 1 and (np.ptp(others) > 1e-6 or kind_name(estimator) == "siblings"):
            values[call.start : call.end] += estimator.weight * (mine - others.mean()) / deviation(others, estimator)
    return values[samples[i].mask]


def _by_tree(i: int, samples: Sequence[Sample], units: Sequence[_Unit], estimator: Any) -> Floats:
    """Returns each trained token's advantage by a formula of `trees`, 0 in groups without signal."""
    current = next(unit for unit in units if any(span[0] == i for span in unit.spans))
    same = [unit for unit in units if unit.group == current.group]
    values = np.zeros(len(samples[i].ids))
    if current.fate == "signal":
        paths, rewards = [_path(samples, unit) for unit in same], [unit.reward for unit in same]
        if kind_name(estimator) == "shaped":
            shaped: Floats = np.array(trees.shaped_rewards(rewards, paths, estimator.gain, estimator.mix))
            centred = (shaped - shaped.mean()) / deviation(shaped, estimator)
            rows = [[float(value)] * len(path) for value, path in zip(centred, paths, strict=True)]
        else:
            doubts = [[doubt for _, doubt in sorted(_doubts(samples, unit))] for unit in same]
            rows = trees.deepsearch(rewards, paths, doubts, estimator.right)
        order = [index for index, _ in sorted(_doubts(samples, current))]
        of_call = dict(zip(order, rows[same.index(current)], strict=True))
        for call in samples[i].calls:
            values[call.start : call.end] = of_call[call.index]
    return values[samples[i].mask]


def _doubts(samples: Sequence[Sample], unit: _Unit) -> list[tuple[int, float]]:
    """Returns index and mean negative log-prob of each call of an episode."""
    pairs = [(c, samples[j].sampler_logp[c.start : c.end]) for j, _, _ in unit.spans for c in samples[j].calls]
    return [(c.index, -float(np.mean(logps, dtype=np.float64))) for c, logps in pairs]


def _discounted(samples: Sequence[Sample], unit: _Unit, call: SampleCall, gamma: float) -> float:
    """Returns an episode's reward, discounted once for each call after the given one."""
    later = sum(c.index > call.index and not c.prefix for i, _, _ in unit.spans for c in samples[i].calls)
    return unit.reward * gamma**later


def _compare(unit: _Unit, same: Sequence[_Unit], options: AdvantageOptions) -> None:
    """Sets a unit's advantage, given the units of its group, itself included."""
    rewards = np.array([other.reward for other in same])
    if len(same) < options.min_group:
        unit.fate = "small"
    elif np.ptp(rewards) < 1e-6:
        unit.fate = "equal"
    if unit.fate != "signal":
        return
    estimator: Any = options.estimator
    kind = kind_name(estimator)
    charged = float(kind != "reinforce-pp")  # which subtracts penalties token by token
    returns = np.array([other.reward - charged * other.penalty for other in same])
    mine, mean = unit.reward - charged * unit.penalty, returns.mean()
    if kind in ("siblings", "gigpo"):
        unit.value = (mine - mean) / deviation(returns, estimator)
    elif kind in ("tree", "reinforce-pp-baseline", *OVER_TREES):
        unit.value = mine - mean
    elif kind == "grpo":
        unit.value = (mine - mean) / deviation(returns, estimator)
    elif kind == "rloo":
        unit.value = mine - (returns.sum() - mine) / (len(returns) - 1)
    elif kind == "reinforce-pp":
        unit.value = mine
    else:
        alike = np.array([other.searches == unit.searches for other in same])
        wide = near = (mine - mean) / deviation(returns, estimator)
        if alike.sum() > 1:
            equal = np.ptp(rewards[alike]) < 1e-6
            over_n = replace(estimator, std="none" if estimator.std == "none" else "population")
            near = 0.0 if equal else (mine - returns[alike].mean()) / deviation(returns[alike], over_n)
        unit.value = estimator.alpha * near + (1 - estimator.alpha) * wide


def deviation(values: Floats, options: Any) -> float:
    """Returns the divisor of centred values, given an estimator with `std`, `std_floor` and `eps`."""
    if options.std == "none":
        return 1.0
    squares = float(((values - values.mean()) ** 2).sum())
    spread = math.sqrt(squares / (len(values) - (options.std == "sample")))
    return float(max(spread, options.std_floor) + options.eps)


def whitened(
    samples: Sequence[Sample], values: Sequence[Floats], options: AdvantageOptions, taking_part: set[int]
) -> dict[int, Floats]:
    """Whitens the values of some samples: centres them and divides by their deviation within cells of tokens."""
    cells: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    wide: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for i, call, first, end, turn in _pieces(samples, options):
        if i in taking_part:
            role = () if call is None else (call.role,)
            cells[*role, *turn].append((i, first, end))
            wide[role].append((i, first, end))
    white = {i: np.zeros(len(values[i])) for i in taking_part}
    for name, spans in cells.items():
        with_whom = spans
        if options.normalise != "all" and len(spans) < options.min_group:
            with_whom = wide[name[:1]]
            if len(with_whom) < options.min_group:
                continue
        every = np.concatenate([values[i][first:end] for i, first, end in with_whom])
        if len(every) and np.ptp(every) > 1e-9:
            for i, first, end in spans:
                white[i][first:end] = (values[i][first:end] - every.mean()) / deviation(every, options.estimator)
    return white


def k1_of(sample: Sample) -> Floats:
    """Returns ``log pi - log pi_ref`` of the trained tokens."""
    assert sample.old_logp is not None
    assert sample.ref_logp is not None
    return (sample.old_logp.astype(np.float64) - sample.ref_logp.astype(np.float64))[sample.mask]


def gae_advantages(
    samples: Sequence[Sample],
    options: AdvantageOptions,
    kl_coef: float,
    through_observations: bool,
    frozen: Sequence[Sample] = (),
) -> list[tuple[Floats, Floats] | None]:
    """Returns each sample's (advantages of the trained tokens, returns of all tokens) by GAE; None if it is dropped."""
    estimator: Any = options.estimator
    spread, targets, earned = ([np.zeros(len(sample.ids)) for sample in samples] for _ in range(3))
    valued: list[Any] = []
    for sample, row in zip(samples, earned, strict=True):
        row[sample.mask] = sample.reward[sample.mask] - (kl_coef * k1_of(sample) if kl_coef else 0.0)
        trained = np.flatnonzero(sample.mask)
        valued.append(np.arange(trained[0], trained[-1] + 1) if through_observations else trained)
    for chain in _token_chains(samples, valued, options, frozen):
        later = following = 0.0
        for i, position, after in reversed(chain):
            values: Any = samples[i].value
            value = float(values[position])
            delta = earned[i][position] + after + estimator.gamma * following - value
            later = delta + estimator.gamma * estimator.lam * later
            spread[i][position], targets[i][position], following = later, later + value, value
    raw = [row[sample.mask] for row, sample in zip(spread, samples, strict=True)]
    if estimator.whiten and estimator.whiten_over == "valued":
        every = np.concatenate([row[positions] for row, positions in zip(spread, valued, strict=True)])
        raw = [(row - every.mean()) / deviation(every, estimator) for row in raw]
    elif estimator.whiten:
        white = whitened(samples, raw, options, set(range(len(samples))))
        raw = [white[i] for i in range(len(samples))]
    dropped = [options.drop_overlong and sample.overlong for sample in samples]
    return [None if out else (a, r) for out, a, r in zip(dropped, raw, targets, strict=True)]


def _token_chains(
    samples: Sequence[Sample], valued: Sequence[Any], options: AdvantageOptions, frozen: Sequence[Sample]
) -> list[list[tuple[int, int, float]]]:
    """Returns chains of consecutive tokens: (sample index, position, reward of frozen calls right after it) of each."""
    if options.chain == "call":
        return [[(i, int(position), 0.0) for position in positions] for i, positions in enumerate(valued)]
    of_call: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        for position in valued[i]:
            of_call[i, next(call.index for call in sample.calls if position < call.end)].append(int(position))
    apart = [(i, c.index) for i, sample in enumerate(samples) for c in sample.calls if c.prefix]
    chains = [[(i, position, 0.0) for position in of_call[i, index]] for i, index in apart]
    for name in dict.fromkeys((sample.group_uid, sample.episode_id) for sample in samples):
        same = [i for i, sample in enumerate(samples) if (sample.group_uid, sample.episode_id) == name]
        acts = [(c.index, i) for i in same for c in samples[i].calls if not c.prefix]
        others = [(s, c) for s in frozen if (s.group_uid, s.episode_id) == name for c in s.calls if not c.prefix]
        rest = [(c.index, float(s.reward[c.end - 1])) for s, c in others]
        chain: list[tuple[int, int, float]] = []
        for index, i in sorted(acts):
            chain += [(i, position, 0.0) for position in of_call[i, index]]
            following = min((other for other, _ in acts if other > index), default=math.inf)
            chain[-1] = (*chain[-1][:2], sum(reward for at, reward in rest if index < at < following))
        chains.append(chain)
    return chains
