"""Generalised advantage estimation a second time, written from its definition."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.testing.reference.advantages import Floats, deviation, k1_of, whitened
from searchgym.train.algorithms.estimator import AdvantageOptions
from searchgym.train.algorithms.samples import Sample


def gae_advantages(
    samples: Sequence[Sample],
    options: AdvantageOptions,
    kl_coef: float,
    through_observations: bool,
    frozen: Sequence[Sample] = (),
) -> list[tuple[Floats, Floats] | None]:
    """Returns (advantages of the trained tokens, returns of all tokens) by GAE; None where a sample is left out."""
    estimator: Any = options.estimator
    spread = [np.zeros(len(sample.ids)) for sample in samples]
    targets = [np.zeros(len(sample.ids)) for sample in samples]
    valued: list[npt.NDArray[np.int64]] = []
    for sample in samples:
        trained = np.flatnonzero(sample.mask)
        valued.append(np.arange(trained[0], trained[-1] + 1) if through_observations else trained)
    for chain in _token_chains(samples, valued, options, frozen):
        reward, value = np.zeros(len(chain)), np.zeros(len(chain))
        for k, (i, place, after) in enumerate(chain):
            sample = samples[i]
            assert sample.value is not None
            value[k] = sample.value[place]
            if sample.mask[place]:
                charge = kl_coef * k1_of(sample)[int(sample.mask[:place].sum())] if kl_coef else 0.0
                reward[k] = sample.reward[place] - charge
            reward[k] += after
        delta = reward + estimator.gamma * np.append(value[1:], 0.0) - value
        apart = np.arange(len(chain))[None] - np.arange(len(chain))[:, None]
        advantage = np.where(apart >= 0, (estimator.gamma * estimator.lam) ** np.maximum(apart, 0), 0.0) @ delta
        for (i, place, _), own, estimate in zip(chain, advantage, value, strict=True):
            spread[i][place], targets[i][place] = own, own + estimate
    raw = [row[sample.mask] for row, sample in zip(spread, samples, strict=True)]
    returns = targets
    if estimator.whiten and estimator.whiten_over == "valued":
        every = np.concatenate([row[places] for row, places in zip(spread, valued, strict=True)])
        raw = [(row - every.mean()) / deviation(every, estimator) for row in raw]
    elif estimator.whiten:
        white = whitened(samples, raw, options, set(range(len(samples))))
        raw = [white[i] for i in range(len(samples))]
    dropped = [options.drop_overlong and sample.overlong for sample in samples]
    return [None if out else (a, r) for out, a, r in zip(dropped, raw, returns, strict=True)]


def _token_chains(
    samples: Sequence[Sample],
    valued: Sequence[npt.NDArray[np.int64]],
    options: AdvantageOptions,
    frozen: Sequence[Sample],
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
        rest = [(c.index, s) for s in frozen if (s.group_uid, s.episode_id) == name for c in s.calls if not c.prefix]
        chain: list[tuple[int, int, float]] = []
        for index, i in sorted(acts):
            chain += [(i, place, 0.0) for place in of_call[i, index]]
            following = min((other for other, _ in acts if other > index), default=math.inf)
            earned = [_earned(s, own) for own, s in rest if index < own < following]
            last = chain.pop()
            chain.append((*last[:2], sum(earned)))
        chains.append(chain)
    return chains


def _earned(sample: Sample, index: int) -> float:
    """Returns the reward of one call of a sample."""
    return next(float(sample.reward[call.end - 1]) for call in sample.calls if call.index == index)
