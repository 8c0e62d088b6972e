"""The choice of a token: temperature, nucleus, and the noise that decides."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(logits: Tensor, temperature: Tensor, top_p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Chooses a token per row by inverting the cumulative distribution: one number of noise is one choice.

    Args:
        logits: (B, V) of any float type; used as float32.
        temperature: (B,) float32; 0: the likeliest token.
        top_p: (B,) float32 in (0, 1].
        noise: (B,) float64 in [0, 1).

    Returns:
        (tokens (B,) int64; their natural-log probabilities (B,) float32, see `Sampled.logp`).
    """
    logits = logits.float()
    greedy = temperature == 0
    logp = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], -1)
    if bool((top_p < 1).any()):
        logp = _nucleus(logp, torch.where(greedy, 1.0, top_p))
    total = logp.double().exp().cumsum(-1)
    # At most 1 - 2**-53, the noise cannot round the product up to the total: a token of probability 0 is never chosen.
    drawn = torch.searchsorted(total, noise[:, None] * total[:, -1:], right=True)[:, 0]
    # Only logits that are not finite reach the end; they are told by the log-prob.
    tokens = torch.where(greedy, logits.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, logp.gather(-1, tokens[:, None])[:, 0]


def _nucleus(logp: Tensor, top_p: Tensor) -> Tensor:
    """Cuts distributions to their nucleus and renormalises.

    Args:
        logp: (B, V) float32 natural-log probabilities.
        top_p: (B,) float32; rows of 1 stay as they are.

    Returns:
        (B, V) float32, -inf outside the nucleus.
    """
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    p = ordered.double().exp()
    before = p.cumsum(-1) - p
    out = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p[:, None])
    cut = logp.masked_fill(out, float("-inf"))
    return torch.where((top_p < 1)[:, None], cut - cut.logsumexp(-1, keepdim=True), logp)
