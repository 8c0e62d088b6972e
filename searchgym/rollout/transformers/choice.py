"""Choice of the next token (temperature, nucleus sampling, random numbers that decide), and the end of a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
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


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns uniform random numbers, one per position of a response, from which its tokens are chosen.

    Number i depends on the seed and on i alone, not on `count`.

    Args:
        seed: Seed of the request, at least 0.
        count: Number of positions.

    Returns:
        (count,) float64 in [0, 1).
    """
    return np.random.default_rng(seed).random(count)


class StopMatcher:
    """Detects, token by token, when the text of a response contains a stop string.

    Only the last tokens are decoded, and only if the newest one can have completed a stop string: if its text holds a
    stop string's last character, or a character that is not whole yet.

    Args:
        decode: Token ids to text, special tokens included.
        stop: Stop strings; if empty, nothing ever matches.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str]) -> None:
        self._decode, self._stop = decode, tuple(stop)
        # A token has at least one byte, so a stop string spans at most as many tokens as it has bytes. One more,
        # because some tokenizers drop a blank in front of the first token that they decode.
        self._window = 1 + max((len(text.encode("utf-8", "surrogatepass")) for text in stop), default=0)
        self._last = {text[-1] for text in stop} | {"\N{REPLACEMENT CHARACTER}"}
        self._always = any(text[-1].isspace() for text in stop)
        self._may_complete: dict[int, bool] = {}

    def complete(self, ids: Sequence[int]) -> bool:
        """Returns whether the response, which held no stop string before its last token, holds one now.

        Args:
            ids: Token ids of the response so far, at least one.
        """
        if not self._stop or not self._can_complete(ids[-1]):
            return False
        tail = self._decode(list(ids[-self._window :]))
        return any(text in tail for text in self._stop)

    def _can_complete(self, token: int) -> bool:
        known = self._may_complete.get(token)
        if known is None:
            text = self._decode([token])
            known = self._may_complete[token] = self._always or any(char in text for char in self._last)
        return known
