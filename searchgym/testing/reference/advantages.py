"""The advantages of a training step a second time, written from their definitions.

Nothing here is shared with `searchgym.train.algorithms`: a fault there must not repeat itself in what it is compared
with. Slow and plain on purpose.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.options import kind_name
from searchgym.scoring import normalise_answer
from searchgym.train.algorithms.estimator import AdvantageOptions
from searchgym.train.algorithms.samples import Sample, SampleCall

Floats = npt.NDArray[np.float64]
Piece = tuple[int, SampleCall | None, int, int, tuple[str, ...]]
"""(Sample, call, first and end among its trained tokens, name of the turn) of what is compared."""


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
    k1 = [kl_coef * k1_of(s) if kl_coef else np.zeros(int(s.mask.sum())) for s in samples]
    estimator: Any = options.estimator
    kind, units = kind_name(estimator), _compared(samples, options, k1)
    values = [np.zeros(len(row)) for row in k1]
    for unit in units:
        for i, first, end in unit.places:
            values[i][first:end] = unit.value
            if kind == "reinforce-pp" and unit.fate == "signal":
                values[i][first:end] -= [k1[i][t:].sum() for t in range(first, end)]
    if kind == "tree":
        values = [_branches(i, samples, units, estimator.shared) for i in range(len(samples))]
    fates = {i: {unit.fate for unit in units if any(p[0] == i for p in unit.places)} for i in range(len(samples))}
    stays = {i for i in range(len(samples)) if "signal" in fates[i] or not options.drop_zero_variance}
    if kind.startswith("reinforce-pp"):
        white = whitened(samples, values, options, {i for i in stays if fates[i] != {"small"}})
        for i in white:
            values[i] = white[i]
        for unit in units:
            for i, first, end in unit.places if unit.fate == "small" else ():
                values[i][first:end] = 0
    stays -= {i for i, sample in enumerate(samples) if options.drop_overlong and sample.overlong}
    return [row if i in stays else None for i, row in enumerate(values)]


def with_signal(samples: Sequence[Sample], options: AdvantageOptions) -> set[str | None]:
    """Returns the groups in which something is compared that differs."""
    units = _compared(samples, options, [np.zeros(int(s.mask.sum())) for s in samples])
    return {samples[place[0]].group_uid for unit in units if unit.fate == "signal" for place in unit.places}


def _compared(samples: Sequence[Sample], options: AdvantageOptions, k1: Sequence[Floats]) -> list[_Unit]:
    """Returns what is compared with each other, each with its advantage."""
    units = _units(samples, options, k1)
    for unit in units:
        same = [other for other in units if other.group == unit.group]
        if len(same) < options.min_group and options.normalise == "role-turn":
            same = [other for other in units if other.wide == unit.wide]
        _compare(unit, same, options)
    return units


def _pieces(samples: Sequence[Sample], options: AdvantageOptions) -> Iterator[Piece]:
    """Yields the calls that are compared, or whole samples where ``normalise`` is ``all``."""
    for i, sample in enumerate(samples):
        if options.normalise == "all":
            yield i, None, 0, int(sample.mask.sum()), ()
            continue
        for call in sample.calls:
            turn = (str(call.turn),) if options.normalise == "role-turn" else ()
            yield i, call, int(sample.mask[: call.start].sum()), int(sample.mask[: call.end].sum()), turn


def _units(samples: Sequence[Sample], options: AdvantageOptions, k1: Sequence[Floats]) -> list[_Unit]:
    """Returns what is compared with each other; all questions form one group for ``reinforce-pp``."""
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
            units += [] if unit.places else [unit]
            unit.penalty += float(k1[i].sum())
            unit.places.append((i, first, end))
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
    """Returns the first earlier query of the same words, or near enough in words; otherwise the query joins them."""
    words = normalise_answer(query).split()
    for leader in leaders:
        other = leader.split()
        common = (Counter(words) & Counter(other)).total()
        if sorted(other) == sorted(words) or (common and 2 * common / (len(words) + len(other)) >= overlap):
            return leader
    leaders.append(" ".join(words))
    return leaders[-1]


def _later(samples: Sequence[Sample], sample: Sample, call: SampleCall) -> float:
    """Returns what later calls of the episode pass back to a call; nothing to a trial answer."""
    same = [own for own in samples if (own.group_uid, own.episode_id) == (sample.group_uid, sample.episode_id)]
    later = [(own, c) for own in same for c in own.calls if c.index > call.index and not call.prefix and not c.prefix]
    ends = [(own, c.end - 1) for own, c in later]
    return sum(
        float(own.reward[at]) - (0.0 if own.local_reward is None else float(own.local_reward[at])) for own, at in ends
    )


def _branches(i: int, samples: Sequence[Sample], units: Sequence[_Unit], shared: bool) -> Floats:
    """Returns TreeRL's process reward of each trained token: that of its call, 0 in groups without signal."""
    own = next(unit for unit in units if any(place[0] == i for place in unit.places))
    same = [unit for unit in units if unit.group == own.group]
    values = np.zeros(len(samples[i].ids))

    def began(unit: _Unit, beginning: Sequence[bytes]) -> bool:
        together = shared or unit is own or not beginning
        return together and _path(samples, unit)[: len(beginning)] == beginning

    for call in samples[i].calls if own.fate == "signal" else ():
        path = _path(samples, own, call.index)
        here = [unit.reward for unit in same if began(unit, path)]
        before = [unit.reward for unit in same if began(unit, path[:-1])]
        gained = 2 * np.mean(here) - np.mean([unit.reward for unit in same]) - np.mean(before)
        values[call.start : call.end] = gained / math.sqrt(len(here))
    return values[samples[i].mask]


def _path(samples: Sequence[Sample], unit: _Unit, until: int | None = None) -> list[bytes]:
    """Returns what an episode's calls are known by, in order, up to and with the call of some index."""
    calls = [(c.index, samples[i].ids[: c.end].tobytes()) for i, _, _ in unit.places for c in samples[i].calls]
    return [seen for index, seen in sorted(calls) if until is None or index <= until]


def _compare(unit: _Unit, same: Sequence[_Unit], options: AdvantageOptions) -> None:
    """Sets a unit's advantage from those it is compared with, itself among them."""
    rewards = np.array([other.reward for other in same])
    if len(same) < options.min_group:
        unit.fate = "small"
    elif np.ptp(rewards) < 1e-6:
        unit.fate = "equal"
    if unit.fate != "signal":
        return
    estimator: Any = options.estimator
    kind = kind_name(estimator)
    charged = float(kind != "reinforce-pp")  # whose penalties are taken off token by token
    returns = np.array([other.reward - charged * other.penalty for other in same])
    mine, mean = unit.reward - charged * unit.penalty, returns.mean()
    if kind in ("tree", "reinforce-pp-baseline"):
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
    """Returns what centred values are divided by, given an estimator with `std`, `std_floor` and `eps`."""
    if options.std == "none":
        return 1.0
    squares = float(((values - values.mean()) ** 2).sum())
    spread = math.sqrt(squares / (len(values) - (options.std == "sample")))
    return float(max(spread, options.std_floor) + options.eps)


def whitened(
    samples: Sequence[Sample], values: Sequence[Floats], options: AdvantageOptions, taking_part: set[int]
) -> dict[int, Floats]:
    """Returns the values of some samples, centred and divided by their deviation within cells of tokens."""
    cells: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    wide: dict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for i, call, first, end, turn in _pieces(samples, options):
        if i in taking_part:
            role = () if call is None else (call.role,)
            cells[*role, *turn].append((i, first, end))
            wide[role].append((i, first, end))
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
                made[i][first:end] = (values[i][first:end] - every.mean()) / deviation(every, options.estimator)
    return made


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
    """Returns (advantages of the trained tokens, returns of all tokens) by GAE; None where a sample is left out."""
    estimator: Any = options.estimator
    spread, targets, earned = ([np.zeros(len(sample.ids)) for sample in samples] for _ in range(3))
    valued: list[Any] = []
    for sample, row in zip(samples, earned, strict=True):
        row[sample.mask] = sample.reward[sample.mask] - (kl_coef * k1_of(sample) if kl_coef else 0.0)
        trained = np.flatnonzero(sample.mask)
        valued.append(np.arange(trained[0], trained[-1] + 1) if through_observations else trained)
    for chain in _token_chains(samples, valued, options, frozen):
        later = following = 0.0
        for i, place, after in reversed(chain):
            values: Any = samples[i].value
            value = float(values[place])
            delta = earned[i][place] + after + estimator.gamma * following - value
            later = delta + estimator.gamma * estimator.lam * later
            spread[i][place], targets[i][place], following = later, later + value, value
    raw = [row[sample.mask] for row, sample in zip(spread, samples, strict=True)]
    if estimator.whiten and estimator.whiten_over == "valued":
        every = np.concatenate([row[places] for row, places in zip(spread, valued, strict=True)])
        raw = [(row - every.mean()) / deviation(every, estimator) for row in raw]
    elif estimator.whiten:
        white = whitened(samples, raw, options, set(range(len(samples))))
        raw = [white[i] for i in range(len(samples))]
    dropped = [options.drop_overlong and sample.overlong for sample in samples]
    return [None if out else (a, r) for out, a, r in zip(dropped, raw, targets, strict=True)]


def _token_chains(
    samples: Sequence[Sample], valued: Sequence[Any], options: AdvantageOptions, frozen: Sequence[Sample]
) -> list[list[tuple[int, int, float]]]:
    """Returns the tokens that follow each other: (sample, position, what frozen calls earn right after it) of each."""
    if options.chain == "call":
        return [[(i, int(place), 0.0) for place in places] for i, places in enumerate(valued)]
    of_call: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        for place in valued[i]:
            of_call[i, next(call.index for call in sample.calls if place < call.end)].append(int(place))
    apart = [(i, c.index) for i, sample in enumerate(samples) for c in sample.calls if c.prefix]
    chains = [[(i, place, 0.0) for place in of_call[i, index]] for i, index in apart]
    for name in dict.fromkeys((sample.group_uid, sample.episode_id) for sample in samples):
        same = [i for i, sample in enumerate(samples) if (sample.group_uid, sample.episode_id) == name]
        acts = [(c.index, i) for i in same for c in samples[i].calls if not c.prefix]
        others = [(s, c) for s in frozen if (s.group_uid, s.episode_id) == name for c in s.calls if not c.prefix]
        rest = [(c.index, float(s.reward[c.end - 1])) for s, c in others]
        chain: list[tuple[int, int, float]] = []
        for index, i in sorted(acts):
            chain += [(i, place, 0.0) for place in of_call[i, index]]
            following = min((other for other, _ in acts if other > index), default=math.inf)
            chain[-1] = (*chain[-1][:2], sum(reward for own, reward in rest if index < own < following))
        chains.append(chain)
    return chains
