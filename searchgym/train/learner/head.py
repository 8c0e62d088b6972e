"""Log-probs and entropies of trained tokens by the output layer, whose logits never exist as a whole.

The product with the vocabulary is computed in tiles of some tokens by some vocabulary entries. The forward pass keeps
running sums of each token's softmax, the backward pass computes the tiles again. N trained tokens with a vocabulary of
V entries need memory for one tile instead of several (N, V) matrices.

Source: the running softmax of FlashAttention, arXiv 2205.14135, algorithm 1, applied to the vocabulary; Cut
Cross-Entropy, arXiv 2411.09009, does the same in one GPU kernel. Deviation: no gradient is skipped for being small.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from searchgym.rollout.transformers.precision import gradient_product, product, rounded

TILES: Final = {"cpu": (1024, 4096), "cuda": (4096, 32_768)}
"""Tokens and vocabulary entries of a tile by device: on a CPU a tile fits into its caches."""


class Scores(NamedTuple):
    """What the learner needs of the distributions that predict N tokens."""

    logp: Tensor
    """(N,) natural-log probabilities of the tokens."""
    entropy: Tensor
    """(N,) entropies of the distributions in nats."""


def head_scores(
    hidden: Tensor,
    head: torch.nn.Linear,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    mixed: bool = False,
    entropy_gradient: bool = False,
) -> Scores:
    """Computes the log-probs of tokens, and the entropies of their distributions, from the output layer's inputs.

    Equal to `token_logp` of the layer's logits except for rounding.

    Args:
        hidden: (N, H) inputs of the output layer; row i predicts target i.
        head: Output layer, with a weight of (V, H).
        targets: (N,) int64 token ids.
        temperature: Divisor of the logits.
        mixed: If True, the inputs of products are rounded to bfloat16; see `searchgym.rollout.transformers.precision`.
            Weights in bfloat16 imply it.
        entropy_gradient: If True, entropies have a gradient.

    Returns:
        Log-probs and entropies, (N,) each, in float32 (float64 for a float64 layer).
    """
    mixed = mixed or head.weight.dtype == torch.bfloat16
    logp, entropy = _HeadScores.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, temperature, mixed, entropy_gradient
    )
    return Scores(logp, entropy)


@contextmanager
def scoring(head: torch.nn.Linear, keep: Tensor, *arguments: Any, **options: Any) -> Iterator[list[Scores]]:
    """Makes an output layer return scores instead of logits, so that wrappers of a model can compute them.

    Args:
        head: Output layer of a model.
        keep: (B, T) bool; True at positions whose inputs are scored.
        arguments: Further arguments of `head_scores`.
        options: The same, by name.

    Yields:
        A list that receives the scores of every call of the layer. The layer returns them as (1, N, 2).
    """
    calls: list[Scores] = []

    def forward(hidden: Tensor) -> Tensor:
        calls.append(head_scores(hidden[keep], head, *arguments, **options))
        return torch.stack(calls[-1], -1)[None]

    vars(head)["forward"] = forward
    try:
        yield calls
    finally:
        del vars(head)["forward"]


class _HeadScores(torch.autograd.Function):
    """`head_scores` with a backward pass that computes the tiles again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        mixed: bool,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        tiles = _Tiles(hidden, weight, bias, temperature, mixed)
        count = len(hidden)
        highest = hidden.new_full((count,), -1e30, dtype=tiles.dtype)
        total, weighted, chosen = (hidden.new_zeros(count, dtype=tiles.dtype) for _ in range(3))
        # With x the logits less the highest so far: `total` is the sum of exp(x), `weighted` that of x exp(x).
        for columns, rows, _, logits in tiles:
            local = (targets[rows] - columns.start).unsqueeze(-1)
            inside = (local >= 0) & (local < logits.shape[-1])
            chosen[rows] += torch.where(inside, logits.gather(-1, local.clamp(0, logits.shape[-1] - 1)), 0.0)[:, 0]
            top = torch.maximum(highest[rows], logits.amax(-1))
            change = highest[rows] - top
            factor = change.exp()
            powers = logits.sub_(top.unsqueeze(-1)).exp()
            weighted[rows] = factor * (weighted[rows] + change * total[rows]) + logits.mul_(powers).sum(-1)
            total[rows] = factor * total[rows] + powers.sum(-1)
            highest[rows] = top
        normaliser = highest + total.log()
        entropy = total.log() - weighted / total
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature, ctx.mixed = temperature, mixed
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        by_logp, by_entropy = gradients
        tiles = _Tiles(hidden, weight, bias, ctx.temperature, ctx.mixed)
        by_logp = torch.zeros_like(normaliser) if by_logp is None else by_logp
        of_hidden = torch.zeros_like(hidden, dtype=tiles.dtype)
        of_weight = None
        if ctx.needs_input_grad[1]:  # the first tile of each entry writes it
            of_weight = (torch.empty_like if len(hidden) else torch.zeros_like)(weight, dtype=tiles.dtype)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=tiles.dtype)
        for columns, rows, matrix, logits in tiles:
            logp = logits.sub_(normaliser[rows].unsqueeze(-1))
            change = logp.exp()  # probabilities, then the gradient of the logits
            if by_entropy is None:
                change.mul_(-by_logp[rows].unsqueeze(-1))
            else:
                pull = logp.add_(entropy[rows].unsqueeze(-1)).mul_(by_entropy[rows].unsqueeze(-1))
                change.mul_(pull.add_(by_logp[rows].unsqueeze(-1)).neg_())
            local = targets[rows] - columns.start
            inside = ((local >= 0) & (local < change.shape[-1])).to(change.dtype)
            local = local.clamp(0, change.shape[-1] - 1).unsqueeze(-1)
            change.scatter_add_(-1, local, (inside * by_logp[rows]).unsqueeze(-1)).div_(ctx.temperature)
            if of_bias is not None:
                of_bias[columns] += change.sum(0)
            of_hidden[rows] += gradient_product(change, matrix, ctx.mixed)
            if of_weight is not None:
                of_tile = gradient_product(change.t(), tiles.hidden[rows], ctx.mixed)
                of_weight[columns] = of_tile if rows.start == 0 else of_weight[columns] + of_tile
        of_head = (None if g is None else g.to(weight.dtype) for g in (of_weight, of_bias))
        return of_hidden.to(hidden.dtype), *of_head, None, None, None, None


class _Tiles:
    """Tiles of the logits of N tokens, computed one after the other.

    Args:
        hidden: (N, H) inputs of the output layer.
        weight: (V, H) weight of the output layer.
        bias: (V,) bias, or None.
        temperature: Divisor of the logits.
        mixed: If True, inputs of products are rounded to bfloat16.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, mixed: bool) -> None:
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.hidden = rounded(hidden) if mixed else hidden.to(self.dtype)
        self._weight, self._bias, self._temperature, self._mixed = weight, bias, temperature, mixed

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yields (vocabulary entries, tokens, (c, H) rows of the weight, (n, c) logits) of each tile."""
        tokens, entries = TILES.get(self.hidden.device.type, TILES["cuda"])
        for first in range(0, len(self._weight), entries):
            columns = slice(first, min(first + entries, len(self._weight)))
            part = self._weight[columns]
            matrix = rounded(part) if self._mixed else part.to(self.dtype)
            for start in range(0, len(self.hidden), tokens):
                rows = slice(start, min(start + tokens, len(self.hidden)))
                logits = product(self.hidden[rows], matrix.t(), self._mixed)
                if self._bias is not None:
                    logits += self._bias[columns]
                yield columns, rows, matrix, logits.div_(self._temperature)
