"""The losses of a training step a second time, sample by sample, written from their definitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from searchgym.testing.reference.advantages import Floats
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.recipe import Recipe


class TrainedPolicy(Protocol):
    """What a loss asks of the model under training."""

    recipe: Recipe

    def distribution(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Returns all log-probs (n, V), those of the trained tokens (n,) and entropies (n,)."""
        ...

    def logits(self, tokens: Any, places: Any) -> Tensor:
        """Returns the outputs that predict the tokens at some positions, (n, V) or, of a critic, (n, 1)."""
        ...


def trained_tokens(sample: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the positions of the model's own tokens."""
    return np.flatnonzero(sample.mask)


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


def policy_loss(
    shadow: TrainedPolicy, samples: Sequence[Sample], old: Sequence[Floats], reference: Sequence[Floats] | None
) -> Callable[[int], Tensor]:
    """Returns the clipped policy loss of a sample by its number.

    Args:
        shadow: Model under training.
        samples: Samples with advantages.
        old: Log-probs of the trained tokens before the step's first update.
        reference: Log-probs under the reference model; None without KL in the loss.
    """
    options = shadow.recipe.loss
    share = shares(samples, [int(sample.mask.sum()) for sample in samples], options)

    def loss(i: int) -> Tensor:
        sample = samples[i]
        _, logp, entropy = shadow.distribution(sample)
        advantage = torch.from_numpy(sample.advantage[sample.mask].astype(np.float64))
        sampler = torch.from_numpy(sample.sampler_logp[sample.mask].astype(np.float64))
        before = torch.from_numpy(old[i])
        of_token = clipped(logp - before, advantage, options)
        if options.importance_cap is not None:
            of_token = of_token * torch.exp(before - sampler).clamp(max=options.importance_cap)
        if reference is not None:
            of_token = of_token + options.kl_coef * kl(logp - torch.from_numpy(reference[i]), options)
        if options.llds_coef:
            of_token = of_token + options.llds_coef * fallen(logp - before, advantage, units(sample, options))
        return share[i] * (of_token - options.entropy_coef * entropy).sum()

    return loss


def clipped(gap: Tensor, advantage: Tensor, options: LossOptions) -> Tensor:
    """Returns PPO's loss of each token, given the log-ratios of one sequence."""
    gap = gap.mean().expand(len(gap)) if options.ratio == "sequence" and len(gap) else gap
    ratio = torch.where(gap < 20, gap, 20.0).exp()
    too_high = (advantage > 0) & (ratio > 1 + options.clip_high)
    too_low = (advantage < 0) & (ratio < 1 - options.clip_low)
    gain = torch.where(too_high, (1 + options.clip_high) * advantage, ratio * advantage)
    gain = torch.where(too_low, (1 - options.clip_low) * advantage, gain)
    if options.dual_clip is not None:
        gain = torch.where((advantage < 0) & (ratio > options.dual_clip), options.dual_clip * advantage, gain)
    return -gain


def kl(above: Tensor, options: LossOptions) -> Tensor:
    """Returns the estimate of the KL divergence, given ``log pi - log pi_ref``."""
    if options.kl_estimator == "k1":
        return above
    if options.kl_estimator == "k2":
        return above * above / 2
    k3 = torch.expm1(torch.where(above > -20, -above, 20.0)) + above
    return k3 if options.kl_cap is None else torch.where(k3 < options.kl_cap, k3, options.kl_cap)


def units(sample: Sample, options: LossOptions) -> list[int]:
    """Returns the number of trained tokens in each unit of LLDS: each unbroken run of them, or all."""
    places = trained_tokens(sample)
    if options.llds_unit == "response":
        return [len(places)]
    starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1] + 1]
    return [end - start for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def fallen(gap: Tensor, advantage: Tensor, lengths: Sequence[int]) -> Tensor:
    """Returns LLDS of each token: its lost log-likelihood, if its unit lost some and the advantage is at least 0."""
    gates: list[bool] = []
    at, fixed = 0, gap.detach()
    for length in lengths:
        gates += [float(fixed[at : at + length].sum()) < 0] * length
        at += length
    return torch.where(torch.tensor(gates, dtype=torch.bool) & (advantage >= 0), (-gap).clamp(min=0), 0.0)


def likelihood_loss(shadow: TrainedPolicy, samples: Sequence[Sample]) -> Callable[[int], Tensor]:
    """Returns the negative log-likelihood of a sample by its number."""
    share = shares(samples, [int(sample.mask.sum()) for sample in samples], shadow.recipe.loss)
    return lambda i: -share[i] * shadow.distribution(samples[i])[1].sum()


def value_loss(shadow: TrainedPolicy, samples: Sequence[Sample], places: Sequence[Any]) -> Callable[[int], Tensor]:
    """Returns the critic's loss of a sample by its number, given the positions that have a value."""
    clip, total = shadow.recipe.critic.value_clip, sum(map(len, places))

    def loss(i: int) -> Tensor:
        sample, at = samples[i], places[i]
        assert sample.value is not None
        assert sample.returns is not None
        value = shadow.logits(sample.ids, at)[:, 0]
        wanted, before = (torch.from_numpy(row[at].astype(np.float64)) for row in (sample.returns, sample.value))
        error = (value - wanted).square()
        if clip is not None:
            near = torch.minimum(torch.maximum(value, before - clip), before + clip)
            error = torch.maximum(error, (near - wanted).square())
        return error.sum() / (2 * total)

    return loss


def departures(rows: Sequence[tuple[Floats, ...]]) -> list[tuple[float, str]]:
    """Returns how far tokens are from chance, in standard deviations, and what that is said of.

    On average they are as unlikely as their distributions make them, and neighbours do not depend on each other.

    Args:
        rows: Numbers of the tokens of each sample; see `ReferenceModel.look`.
    """
    logp, entropy, variance, *_ = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    off = float(-(logp + entropy).sum() / max(np.sqrt(variance.clip(0).sum()), 1e-9))
    found = [(off, f"{len(logp)} tokens, {off:+.1f} standard deviations less likely than expected")]
    for quantiles in (3, 4):
        pairs = np.concatenate([row[quantiles][1:] * row[quantiles][:-1] for row in rows])
        off = float(pairs.sum()) / max(float(np.sqrt(np.square(pairs).sum())), 1e-9)
        found.append((off, f"neighbouring tokens depend on each other by {off:+.1f} standard deviations"))
    return found


def shortfalls(logits: Tensor, ids: Tensor, told: Tensor, temperature: float) -> list[tuple[float, float, float]]:
    """Returns how far each token is below the likeliest one, and how far the log-prob that was told of it is off.

    Args:
        logits: (n, V) float64 logits.
        ids: (n,) tokens.
        told: (n,) log-probs by the sampler.
        temperature: Temperature of the recipe.

    Returns:
        (short of the likeliest, off at temperature 1, off at the recipe's) in nats.
    """
    chosen = logits.gather(1, ids[:, None])[:, 0]
    off = [(torch.log_softmax(logits / heat, -1).gather(1, ids[:, None])[:, 0] - told) for heat in (1.0, temperature)]
    return list(zip((logits.max(-1).values - chosen).tolist(), *(part.abs().tolist() for part in off), strict=True))


def mean_gap(one: Sequence[Floats], other: Sequence[Any]) -> float:
    """Returns the mean absolute difference over all tokens of all samples."""
    gaps = [np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) for a, b in zip(one, other, strict=True)]
    every = np.concatenate([np.zeros(0), *gaps])
    return float(every.mean()) if len(every) else 0.0
