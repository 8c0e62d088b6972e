"""Generalised advantage estimation: PPO's advantages, from rewards and a critic's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from searchgym.errors import DataError
from searchgym.train.algorithms.advantages import k1_of, whiten_cells, with_advantage
from searchgym.train.algorithms.estimators import Floats
from searchgym.train.algorithms.samples import Sample, Targets
from searchgym.train.recipe.options import AdvantageOptions


def gae(rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """Computes GAE's advantages of one sequence, backwards from its end.

    ``A_k = delta_k + gamma lam A_{k+1}`` with ``delta_k = r_k + gamma V_{k+1} - V_k``. k counts the tokens given, not
    positions in the sequence: where observations are left out, it steps from the last token before one to the first
    token after it. The value after the last token is 0: an episode that was cut off counts as one that ended.

    Source: GAE, arXiv 1506.02438, equations 11, 12 and 16. Search-R1 and verl let the chain run through observations
    (``critic.tokens: response``).

    Args:
        rewards: (n,) float64, one per token.
        values: (n,) float64 estimates of the critic, each made before its token.
        gamma: Discount factor.
        lam: Weight of later rewards: 0 trusts the next value alone, 1 the rewards alone.

    Returns:
        (n,) float64 advantages.
    """
    advantages = np.zeros(len(rewards))
    following = later = 0.0
    for k in range(len(rewards) - 1, -1, -1):
        later = rewards[k] + gamma * following - values[k] + gamma * lam * later
        advantages[k], following = later, values[k]
    return advantages


def assign_gae(
    samples: Sequence[Sample], options: AdvantageOptions, targets: Targets, kl_coef: float = 0.0
) -> list[Sample]:
    """Sets the advantages of samples by GAE, and the returns that the critic learns.

    Args:
        samples: With `value` set; with `old_logp` and `ref_logp` too where `kl_coef` is above 0.
        options: `gamma` and `lam`; `whiten` and the cells to whiten over (`normalise`); `drop_overlong`.
        targets: Returns the token positions of a sample that `gae` runs over.
        kl_coef: Weight of k1 in the reward of each trained token.

    Returns:
        The samples with advantages on their masks, and with ``returns = advantage + value`` (before whitening) on the
        target tokens.

    Raises:
        DataError: A sample without values, or a reward that is not finite.
    """
    valued, values = [], []
    for sample in samples:
        if sample.value is None:
            raise DataError(f"episode {sample.episode_id} has no values: GAE needs a critic's estimates")
        rewards = np.where(sample.mask, sample.reward, 0).astype(np.float64)
        if not np.isfinite(rewards).all():
            raise DataError(f"episode {sample.episode_id}: a reward must be finite")
        if kl_coef:
            rewards[sample.mask] -= kl_coef * k1_of(sample)
        places = targets(sample)
        advantages = gae(rewards[places], sample.value[places].astype(np.float64), options.gamma, options.lam)
        spread, returns = np.zeros(len(sample.ids)), np.zeros(len(sample.ids), np.float32)
        spread[places], returns[places] = advantages, advantages + sample.value[places]
        valued.append(dataclasses.replace(sample, returns=returns))
        values.append(spread[sample.mask])
    if options.whiten:
        values = whiten_cells(values, valued, options)
    return [
        with_advantage(sample, row)
        for sample, row in zip(valued, values, strict=True)
        if not (options.drop_overlong and sample.overlong)
    ]
