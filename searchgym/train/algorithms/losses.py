"""Losses as sums over tokens, so that every split into micro-batches and ranks has the same total.

Symbols: N trained tokens of a micro-batch in row order, V vocabulary size. Tokens outside a sample's mask never reach
this module, so they cannot change a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.train.algorithms.loss_options import KL, LossOptions, Reduction
from searchgym.train.algorithms.samples import Sample, Targets, model_targets

FARTHEST: Final = 20.0
"""Upper bound of the exponent of a ratio, in nats, as in later versions of verl; float32 overflows at about 88."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Returns ``exp(min(log_ratio, 20))``, which stays finite and is far above any sensible clip."""
    return torch.exp(log_ratio.clamp(max=FARTHEST))


def token_logp(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Computes the log-probs of tokens, and the entropies of their distributions, in float32.

    Args:
        logits: (N, V) logits of any float type; row i predicts target i.
        targets: (N,) int64 token ids.
        temperature: Divisor of the logits, equal to the sampler's temperature.
        entropy_gradient: If True, entropies have a gradient; if False, they need no memory for the backward pass.

    Returns:
        (N,) float32 natural-log probabilities, and (N,) float32 entropies in nats.
    """
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    whole = logp if entropy_gradient else logp.detach()
    entropy = -(whole.exp() * whole).sum(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def sequence_log_ratio(log_ratio: Tensor, rows: Sequence[int]) -> Tensor:
    """Computes GSPO's log-ratio: each token gets the mean over its sequence's trained tokens.

    Source: GSPO, arXiv 2507.18071, equation 7. A sequence is one sample; an episode with several contexts has several
    sequences.

    Args:
        log_ratio: (N,) log-ratios of single tokens.
        rows: Number of trained tokens of each sequence; they add up to N.
    """
    parts = [part.mean().expand(len(part)) for part in torch.split(log_ratio, list(rows)) if len(part)]
    return torch.cat([log_ratio[:0], *parts])


def clipped_ratio_loss(
    log_ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Computes PPO's clipped loss per token: ``-min(r A, clip(r, 1 - low, 1 + high) A)``, ``r = exp(log_ratio)``.

    With `dual` c, where A is negative: ``-max(min(r A, clip(r) A), c A)``; tokens beyond c have no gradient, and
    without `dual` those beyond 20 nats (`ratio_of`).

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds are from DAPO (clip-higher), arXiv 2503.14476; the second
    clip is Dual-clip PPO, arXiv 1912.09729, equation 5.

    Args:
        log_ratio: (N,) log-prob under the current weights minus the log-prob before the step's first update.
        advantage: (N,) advantages.
        low: Distance of the lower clip below ratio 1.
        high: Distance of the upper clip above ratio 1.
        dual: Bound on the ratio where the advantage is negative, above 1 + `high`; None: no bound.

    Returns:
        (N,) losses.
    """
    ratio = ratio_of(log_ratio)
    gain = torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if dual is not None:
        gain = torch.where(advantage < 0, torch.max(gain, dual * advantage), gain)
    return -gain


def importance_weight(old_logp: Tensor, sampler_logp: Tensor, cap: float) -> Tensor:
    """Computes truncated importance weights, ``min(exp(old_logp - sampler_logp), cap)``, per token.

    They correct for tokens that were sampled by another engine or by older weights.

    Source: truncated importance sampling, F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training" (2025). Applied token by token and without gradient.

    Args:
        old_logp: (N,) log-probs under the trainer's weights before the step's first update.
        sampler_logp: (N,) log-probs recorded by the sampler.
        cap: Largest weight.
    """
    return torch.exp(old_logp - sampler_logp).clamp(max=cap).detach()


def llds(log_ratio: Tensor, advantage: Tensor, runs: Sequence[int]) -> Tensor:
    """Computes the LLDS penalty per token, ``gate max(0, -log_ratio) 1[A >= 0]``, for lost likelihood of good tokens.

    The gate is 1 where the summed log-likelihood of the token's unit (a call or a response) has fallen.

    Source: Lazy Likelihood-Displacement regulariser, arXiv 2512.04220, from the released code, which uses weight 0.2;
    calls were the best units. Deviation: averaged like the policy loss, over the step's one denominator; the released
    code averages over the tokens of a micro-batch. Variants that exempt the answer are left out.

    Args:
        log_ratio: (N,) log-ratios of single tokens, with gradient.
        advantage: (N,) advantages.
        runs: Number of trained tokens of each unit; they add up to N.

    """
    fallen = [(part.sum() < 0).expand(len(part)) for part in torch.split(log_ratio.detach(), list(runs)) if len(part)]
    gate = torch.cat([advantage[:0] > 0, *fallen]) & (advantage >= 0)
    return gate * torch.relu(-log_ratio)


def kl_k3(logp: Tensor, ref_logp: Tensor, cap: float | None = 10.0) -> Tensor:
    """Computes the k3 estimate of KL(policy || reference) per token: ``exp(d) - d - 1``, ``d = ref_logp - logp``.

    Source: J. Schulman, "Approximating KL divergence" (2020), k3: never negative, unbiased on the policy's own tokens;
    DeepSeekMath, arXiv 2402.03300, equation 4. The gradient is taken directly, without importance
    weights (DeepSeek-V3.2, arXiv 2512.02556, and TRL's default multiply by the ratio).

    Args:
        logp: (N,) log-probs under the policy.
        ref_logp: (N,) log-probs under the reference.
        cap: Upper bound of the estimate, without gradient beyond it, as in verl's ``low_var_kl``: otherwise a token
            that became very unlikely would outweigh all others. None: only the bound of `ratio_of`.

    Returns:
        (N,) estimates in nats.
    """
    difference = ref_logp - logp
    estimate = ratio_of(difference) - difference - 1
    return estimate if cap is None else estimate.clamp(max=cap)


def kl_estimate(estimator: KL, logp: Tensor, ref_logp: Tensor, cap: float | None = 10.0) -> Tensor:
    """Computes one of Schulman's three estimates of KL(policy || reference) per token, ``d = ref_logp - logp``.

    * ``k1``: ``-d``. Unbiased. For use in the reward: in the loss, its gradient has mean 0 on the policy's own tokens,
      so it has no effect.
    * ``k2``: ``d^2 / 2``. Biased, but its gradient is an unbiased estimate of the KL's gradient.
    * ``k3``: see `kl_k3`. Unbiased below its cap and never negative; its gradient is that of KL(reference || policy).

    Source: J. Schulman, "Approximating KL divergence" (2020). Returns (N,) estimates in nats.
    """
    if estimator == "k1":
        return logp - ref_logp
    return 0.5 * (logp - ref_logp).square() if estimator == "k2" else kl_k3(logp, ref_logp, cap)


def policy_sums(
    logp: Tensor,
    entropy: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    weight: Tensor,
    ref_logp: Tensor | None,
    options: LossOptions,
    *,
    sampler_logp: Tensor | None = None,
    rows: Sequence[int] = (),
    runs: Sequence[int] = (),
) -> tuple[Tensor, dict[str, float]]:
    """Sums the policy loss of a micro-batch over its tokens.

    A token adds ``w (importance x clipped ratio + kl_coef KL + llds_coef LLDS - entropy_coef H)``.

    Args:
        logp: (N,) log-probs under the current weights, with gradient.
        entropy: (N,) entropies in nats, with gradient if `entropy_coef` is above 0.
        old_logp: (N,) log-probs before the step's first update, without gradient.
        advantage: (N,) advantages.
        weight: (N,) weights by `token_weights`.
        ref_logp: (N,) log-probs under the reference model; None if `kl_coef` is 0.
        options: Clips and coefficients.
        sampler_logp: (N,) log-probs recorded by the sampler; needed with `importance_cap`.
        rows: Number of trained tokens of each sequence, for ``ratio: sequence`` and ``llds_unit: response``.
        runs: Number of trained tokens of each call, for ``llds_unit: call``.

    Returns:
        The weighted sum, not yet divided by the denominator, with gradient; and unweighted sums over tokens by metric
        name.
    """
    single = logp - old_logp
    log_ratio = single if options.ratio == "token" else sequence_log_ratio(single, rows)
    loss = clipped_ratio_loss(log_ratio, advantage, options.clip_low, options.clip_high, options.dual_clip)
    with torch.no_grad():
        ratio = ratio_of(log_ratio)
        statistics = {
            "ratio": ratio.sum(),
            "clipped_low": ((ratio < 1 - options.clip_low) & (advantage < 0)).sum(),
            "clipped_high": ((ratio > 1 + options.clip_high) & (advantage > 0)).sum(),
            "old_kl": kl_k3(old_logp, logp, cap=None).sum(),
            "entropy": entropy.sum(),
        }
        if options.dual_clip is not None:
            statistics["clipped_dual"] = ((ratio > options.dual_clip) & (advantage < 0)).sum()
    if options.importance_cap is not None:
        assert sampler_logp is not None
        importance = importance_weight(old_logp, sampler_logp, options.importance_cap)
        loss = importance * loss
        statistics["importance"] = importance.sum()
        statistics["importance_capped"] = (importance == options.importance_cap).sum()
    if ref_logp is not None:
        kl = kl_estimate(options.kl_estimator, logp, ref_logp, options.kl_cap)
        statistics["ref_kl"] = kl.detach().sum()
        if options.kl_in == "loss":
            loss = loss + options.kl_coef * kl
    if options.llds_coef:
        fallen = llds(single, advantage, runs if options.llds_unit == "call" else rows)
        loss = loss + options.llds_coef * fallen
        statistics["llds"] = fallen.detach().sum()
        statistics["llds_acting"] = (fallen.detach() > 0).sum()
    if options.entropy_coef:
        loss = loss - options.entropy_coef * entropy
    return (weight * loss).sum(), {name: float(value) for name, value in statistics.items()}


def value_sums(
    values: Tensor, old_values: Tensor, returns: Tensor, weight: Tensor, clip: float | None
) -> tuple[Tensor, dict[str, float]]:
    """Sums the critic's loss over tokens: ``w max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2``.

    Source: PPO's reference code (baselines), arXiv 1707.06347, equation 9 for the square; Search-R1 and verl clip at
    0.5.

    Args:
        values: (N,) estimates V, with gradient.
        old_values: (N,) estimates before the step's first update.
        returns: (N,) returns R to learn.
        weight: (N,) weights by `token_weights`.
        clip: Maximum distance c from the old estimate; None: no clip.

    Returns:
        The weighted sum, not yet divided by the denominator; and unweighted sums over tokens by metric name.
    """
    squared = (values - returns).square()
    statistics = {"value": values.detach().sum(), "return": returns.sum(), "squared_error": squared.detach().sum()}
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        clipped = (near - returns).square()
        statistics["clipped"] = (clipped > squared).detach().sum()
        squared = torch.max(squared, clipped)
    return (weight * 0.5 * squared).sum(), {name: float(value) for name, value in statistics.items()}


def token_weights(
    samples: Sequence[Sample],
    reduction: Reduction = "token-mean",
    constant_length: int | None = None,
    targets: Targets = model_targets,
) -> tuple[list[npt.NDArray[np.float32]], float]:
    """Returns the weight of each trained token in the loss, and the denominator of the whole update.

    The loss of an update is ``sum of weight x token loss / denominator`` over all its micro-batches and ranks. With
    sample weights w and n trained tokens per sample:

    * ``token-mean``: weights w, denominator ``sum of w n`` (DAPO, arXiv 2503.14476, equation 8; a long episode has more
      weight than a short one);
    * ``sequence-mean``: weights w / n, denominator ``sum of w`` (DeepSeekMath, arXiv 2402.03300, equation 3);
    * ``episode-mean``: weights w over the episode's sum of w n, denominator the number of episodes: an episode of 22
      calls has the same weight as an episode of one call;
    * ``constant``: weights w, denominator ``sum of w x constant_length`` (Dr.GRPO, arXiv 2503.20783;
      a token's weight depends neither on its episode's length nor on the step's).

    Args:
        samples: Every sample of the update.
        reduction: One of the four above.
        constant_length: Number of tokens that each sequence counts as, with ``constant``.
        targets: Returns the positions of the tokens to learn from. Default: the model's trained tokens.

    Returns:
        One (n,) float32 array per sample, and the denominator.
    """
    counts = [len(targets(sample)) for sample in samples]
    divisors = [1.0] * len(samples)
    if reduction == "sequence-mean":
        divisors = [max(n, 1) for n in counts]
    elif reduction == "episode-mean":
        sums: dict[str, float] = {}
        for s, n in zip(samples, counts, strict=True):
            sums[s.episode_id] = sums.get(s.episode_id, 0.0) + s.weight * n
        divisors = [sums[s.episode_id] or 1.0 for s in samples]
    per_token = [s.weight / divisor for s, divisor in zip(samples, divisors, strict=True)]
    weights = [np.full(n, w, np.float32) for n, w in zip(counts, per_token, strict=True)]
    if reduction == "constant":
        assert constant_length is not None
        return weights, sum(per_token) * constant_length
    return weights, sum(w * n for n, w in zip(counts, per_token, strict=True))
