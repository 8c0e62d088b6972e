"""Second implementation of the losses of a training step, sample by sample, written from their definitions."""

from __future__ import annotations

import itertools
import math
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
    """Interface of the model under training that the losses use."""

    recipe: Recipe

    def distribution(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, at the n trained tokens, all log-probs (n, V), those of the tokens (n,) and the entropies (n,)."""
        ...

    def logits(self, tokens: Any, positions: Any) -> Tensor:
        """Returns the outputs that predict the tokens at some positions, (n, V) or, of a critic, (n, K)."""
        ...


def trained_tokens(sample: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the positions of a sample's trained tokens, those in its mask."""
    return np.flatnonzero(sample.mask)


def shares(samples: Sequence[Sample], counts: Sequence[int], options: LossOptions) -> list[float]:
    """Returns the weight in the loss of each token of a sample, one number per sample.

    Args:
        samples: Samples of the update.
        counts: Number of trained tokens of each sample.
        options: Loss options, of which `reduction` decides.
    """
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
    """Returns a function from a sample's index to its clipped policy loss.

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
    """Returns PPO's clipped loss of each token, given the log-ratios of one sequence."""
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
    """Returns an estimate of each token's KL divergence, given ``log pi - log pi_ref``."""
    if options.kl_estimator == "k1":
        return above
    if options.kl_estimator == "k2":
        return above * above / 2
    k3 = torch.expm1(torch.where(above > -20, -above, 20.0)) + above
    return k3 if options.kl_cap is None else torch.where(k3 < options.kl_cap, k3, options.kl_cap)


def units(sample: Sample, options: LossOptions) -> list[int]:
    """Returns the lengths of the units of LLDS, in trained tokens: all of them, or each unbroken run."""
    positions = trained_tokens(sample)
    if options.llds_unit == "response":
        return [len(positions)]
    starts = [i for i in range(len(positions)) if i == 0 or positions[i] != positions[i - 1] + 1]
    return [end - start for start, end in zip(starts, [*starts[1:], len(positions)], strict=True)]


def fallen(gap: Tensor, advantage: Tensor, lengths: Sequence[int]) -> Tensor:
    """Returns the LLDS penalty of each token: its lost log-likelihood, or 0.

    It is above 0 only for tokens with an advantage of at least 0 whose unit lost log-likelihood as a whole.
    """
    gates: list[bool] = []
    at, fixed = 0, gap.detach()
    for length in lengths:
        gates += [float(fixed[at : at + length].sum()) < 0] * length
        at += length
    return torch.where(torch.tensor(gates, dtype=torch.bool) & (advantage >= 0), (-gap).clamp(min=0), 0.0)


def likelihood_loss(shadow: TrainedPolicy, samples: Sequence[Sample]) -> Callable[[int], Tensor]:
    """Returns a function from a sample's index to its share of the negative log-likelihood."""
    share = shares(samples, [int(sample.mask.sum()) for sample in samples], shadow.recipe.loss)
    return lambda i: -share[i] * shadow.distribution(samples[i])[1].sum()


def value_loss(shadow: TrainedPolicy, samples: Sequence[Sample], positions: Sequence[Any]) -> Callable[[int], Tensor]:
    """Returns a function from a sample's index to its critic loss, given the positions that have a value."""
    critic, total = shadow.recipe.critic, sum(map(len, positions))

    def loss(i: int) -> Tensor:
        sample, at = samples[i], positions[i]
        assert sample.value is not None
        assert sample.returns is not None
        outputs = shadow.logits(sample.ids, at)
        target, before = (torch.from_numpy(row[at].astype(np.float64)) for row in (sample.returns, sample.value))
        if outputs.shape[1] > 1:
            target_mass = torch.tensor([blurred(float(y), critic.loss) for y in target], dtype=outputs.dtype)
            return (target_mass * (outputs.logsumexp(1, keepdim=True) - outputs)).sum() / total
        value = outputs[:, 0]
        error = (value - target).square()
        if critic.value_clip is not None:
            near = torch.minimum(torch.maximum(value, before - critic.value_clip), before + critic.value_clip)
            error = torch.maximum(error, (near - target).square())
        return error.sum() / (2 * total)

    return loss


def value_of(outputs: Tensor, loss: Any) -> Tensor:
    """Returns the values that (n, K) outputs of a critic stand for: the only output, or the mean over bins."""
    if outputs.shape[1] == 1:
        return outputs[:, 0]
    width = (loss.high - loss.low) / outputs.shape[1]
    centres = torch.tensor([loss.low + width * (i + 0.5) for i in range(outputs.shape[1])], dtype=outputs.dtype)
    likely = (outputs - outputs.max(1, keepdim=True).values).exp()
    return (likely * centres).sum(1) / likely.sum(1)


def blurred(target: float, loss: Any) -> list[float]:
    """Returns the probability of each bin of a critic under a normal distribution around a return."""
    width, target = (loss.high - loss.low) / loss.bins, min(max(target, loss.low), loss.high)
    scale = math.sqrt(2) * loss.smoothing * width
    below = [math.erf((loss.low + width * i - target) / scale) for i in range(loss.bins + 1)]
    return [(above - under) / (below[-1] - below[0]) for under, above in itertools.pairwise(below)]


def departures(rows: Sequence[tuple[Floats, ...]]) -> list[tuple[float, str]]:
    """Tests whether tokens were drawn from their distributions.

    If so, they are on average as unlikely as the entropy predicts, and neighbouring tokens are independent.

    Args:
        rows: Statistics of the tokens of each sample; see `ReferenceModel.look`.

    Returns:
        (deviation from the expectation in standard deviations, description) of each test.
    """
    logp, entropy, variance, *_ = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    off = float(-(logp + entropy).sum() / max(np.sqrt(variance.clip(0).sum()), 1e-9))
    results = [(off, f"{len(logp)} tokens, {off:+.1f} standard deviations less likely than expected")]
    for quantiles in (3, 4):
        pairs = np.concatenate([row[quantiles][1:] * row[quantiles][:-1] for row in rows])
        # by the distributions' variances: those of the sample miss the rare tokens where most tokens are nearly certain
        expected = np.concatenate([row[5][1:] * row[5][:-1] for row in rows])
        off = float(pairs.sum()) / max(float(np.sqrt(expected.sum())), 1e-9)
        results.append((off, f"neighbouring tokens depend on each other by {off:+.1f} standard deviations"))
    return results


def shortfalls(logits: Tensor, ids: Tensor, reported: Tensor, temperature: float) -> list[tuple[float, float, float]]:
    """Compares tokens with the likeliest ones, and their reported log-probs with the model's.

    Args:
        logits: (n, V) float64 logits.
        ids: (n,) tokens.
        reported: (n,) log-probs reported by the sampler.
        temperature: Temperature of the recipe.

    Returns:
        For each token, in nats: its distance below the likeliest token, and the absolute error of its reported
        log-prob at temperature 1 and at the recipe's temperature.
    """
    chosen = logits.gather(1, ids[:, None])[:, 0]
    off = [
        (torch.log_softmax(logits / heat, -1).gather(1, ids[:, None])[:, 0] - reported) for heat in (1.0, temperature)
    ]
    return list(zip((logits.max(-1).values - chosen).tolist(), *(part.abs().tolist() for part in off), strict=True))


def mean_gap(one: Sequence[Floats], other: Sequence[Any]) -> float:
    """Returns the mean absolute difference of two sets of rows, over all tokens of all samples."""
    gaps = [np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) for a, b in zip(one, other, strict=True)]
    every = np.concatenate([np.zeros(0), *gaps])
    return float(every.mean()) if len(every) else 0.0
