"""Losses as sums over tokens, so that micro-batches and ranks add up to one number whatever the cut.

Symbols: N trained tokens of a micro-batch in row order, V vocabulary. What is not in a sample's mask never reaches
this module: no value at a masked position can change a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.train.recipe import LossOptions, Reduction
from searchgym.train.samples import Sample


def token_logp(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Computes log-probs of tokens and the entropy of what they were drawn from, in float32.

    Args:
        logits: (N, V) of any float type, each predicting its target.
        targets: (N,) int64.
        temperature: Logits are divided by it, as the sampler did.
        entropy_gradient: Whether the entropies are learnt from; without, they keep no memory for the backward pass.

    Returns:
        (N,) float32 natural-log probabilities, and (N,) float32 entropies in nats.
    """
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    whole = logp if entropy_gradient else logp.detach()
    entropy = -(whole.exp() * whole).sum(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def clipped_ratio_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """Computes PPO's clipped loss per token: ``-min(r A, clip(r, 1 - low, 1 + high) A)``, ``r = exp(logp - old_logp)``.

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds are DAPO's clip-higher, arXiv 2503.14476.

    Args:
        logp: (N,) under the weights that learn.
        old_logp: (N,) under the weights before the step's first update.
        advantage: (N,).
        low: Clip below 1.
        high: Clip above 1.

    Returns:
        (N,) losses.
    """
    ratio = torch.exp(logp - old_logp)
    return -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Computes an estimate of KL(policy || reference) per token: ``exp(d) - d - 1``, ``d = ref_logp - logp``.

    Source: J. Schulman, "Approximating KL divergence" (2020), k3: never negative, unbiased on the policy's own tokens;
    DeepSeekMath, arXiv 2402.03300, equation 4. Its gradient is taken as it stands, without importance
    weights (DeepSeek-V3.2, arXiv 2512.02556, and TRL's default multiply by the ratio).

    Returns:
        (N,) estimates in nats.
    """
    difference = ref_logp - logp
    return torch.exp(difference) - difference - 1


@dataclass(frozen=True, slots=True)
class PolicySums:
    """What a micro-batch adds to the sums of a step."""

    loss: Tensor
    """Scalar with gradient: weighted sum over tokens, not yet divided."""
    statistics: dict[str, float]
    """Unweighted sums over tokens, for metrics."""


def policy_sums(
    logp: Tensor,
    entropy: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    weight: Tensor,
    ref_logp: Tensor | None,
    options: LossOptions,
) -> PolicySums:
    """Sums the policy loss of a micro-batch: ``w (clipped ratio + kl_coef k3 - entropy_coef H)``.

    Args:
        logp: (N,) with gradient.
        entropy: (N,) with gradient where the bonus is used.
        old_logp: (N,), no gradient.
        advantage: (N,).
        weight: (N,) of `token_weights`.
        ref_logp: (N,) under the reference model; None where `kl_coef` is 0.
        options: Clips and coefficients.
    """
    loss = clipped_ratio_loss(logp, old_logp, advantage, options.clip_low, options.clip_high)
    with torch.no_grad():
        ratio = torch.exp(logp - old_logp)
        statistics = {
            "ratio": ratio.sum(),
            "clipped_low": ((ratio < 1 - options.clip_low) & (advantage < 0)).sum(),
            "clipped_high": ((ratio > 1 + options.clip_high) & (advantage > 0)).sum(),
            "old_kl": kl_k3(old_logp, logp).sum(),
            "entropy": entropy.sum(),
        }
    if ref_logp is not None:
        kl = kl_k3(logp, ref_logp)
        loss = loss + options.kl_coef * kl
        statistics["ref_kl"] = kl.detach().sum()
    if options.entropy_coef:
        loss = loss - options.entropy_coef * entropy
    return PolicySums((weight * loss).sum(), {name: float(value) for name, value in statistics.items()})


def token_weights(
    samples: Sequence[Sample], reduction: Reduction = "token-mean"
) -> tuple[list[npt.NDArray[np.float32]], float]:
    """Returns what each trained token weighs, and the one denominator of the whole step.

    The loss of a step is ``sum of weight x token loss / denominator`` over all its micro-batches and ranks. With
    sample weights w and n trained tokens per sample:

    * ``token-mean``: weights w, denominator ``sum of w n`` (DAPO, arXiv 2503.14476, equation 8; a long episode weighs
      more than a short one);
    * ``sequence-mean``: weights w / n, denominator ``sum of w`` (DeepSeekMath, arXiv 2402.03300, equation 3).

    Args:
        samples: Every sample of the step.
        reduction: See above.

    Returns:
        One (n,) float32 array per sample, and the denominator.
    """
    counts = [int(sample.mask.sum()) for sample in samples]
    own = [
        s.weight if reduction == "token-mean" else s.weight / max(n, 1) for s, n in zip(samples, counts, strict=True)
    ]
    weights = [np.full(n, w, np.float32) for n, w in zip(counts, own, strict=True)]
    return weights, sum(w * n for n, w in zip(counts, own, strict=True))
