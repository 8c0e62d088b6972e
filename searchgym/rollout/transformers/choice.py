"""Choice of the next token: temperature, nucleus sampling, and the random numbers that decide."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(logits: Tensor, temperature: Tensor, top_p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Chooses one token per row by inverting the cumulative distribution at a random number.

    Args:
        logits: (B, V) logits of any float type, converted to float32.
        temperature: (B,) float32 temperatures; 0 takes the likeliest token.
        top_p: (B,) float32 probability masses of nucleus sampling, in (0, 1].
        noise: (B,) float64 random numbers in [0, 1).

    Returns:
        Tokens, (B,) int64, and their natural-log probabilities, (B,) float32 (see `Sampled.logp`).
    """
    logits = logits.float()
    greedy = temperature == 0
    logp = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], -1)
    if bool((top_p < 1).any()):
        logp = _nucleus(logp, torch.where(greedy, 1.0, top_p))
    total = logp.double().exp().cumsum(-1)
    # The noise is at most 1 - 2**-53, so its product with the total never rounds up to the total: a token of
    # probability 0 is never chosen.
    drawn = torch.searchsorted(total, noise[:, None] * total[:, -1:], right=True)[:, 0]
    # The clamp matters only for logits that are not finite; their log-probability then reveals them.
    tokens = torch.where(greedy, logits.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, logp.gather(-1, tokens[:, None])[:, 0]


def _nucleus(logp: Tensor, top_p: Tensor) -> Tensor:
    """Restricts distributions to their nucleus and renormalises them.

    Args:
        logp: (B, V) float32 natural-log probabilities.
        top_p: (B,) float32 probability masses; rows with 1 stay unchanged.

    Returns:
        (B, V) float32 natural-log probabilities, -inf outside the nucleus.
    """
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    p = ordered.double().exp()
    before = p.cumsum(-1) - p
    out = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p[:, None])
    cut = logp.masked_fill(out, float("-inf"))
    return torch.where((top_p < 1)[:, None], cut - cut.logsumexp(-1, keepdim=True), logp)
