"""Second implementation of the learner, in plain torch, whose losses, gradients and updates the real one must match.

Samples are computed one by one. No code is shared with `searchgym.train.learner`: no batches, padding or
hooks. AdamW is written from its definition, and LoRA from the gradients of the whole matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from searchgym.testing.reference.advantages import Floats
from searchgym.testing.reference.losses import trained_tokens
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import OptimizerOptions
from searchgym.train.recipe.recipe import Recipe

State = Mapping[str, Tensor]
"""Weights by name."""
RowLoss = Callable[[int], Tensor]
"""Function from a sample's index to its part of the loss."""
MakeLoss = Callable[[Sequence[int]], RowLoss]
"""Function from the indices of an update's samples to a `RowLoss` over them, in their order."""


FLOOR: Final = 1e-3
"""Minimum length of a weight's gradient in comparisons, as a share of the gross norm of all weights together:
attention's key biases have a gradient of 0, of which only rounding is left."""
CANCELS: Final = 0.1
"""Minimum length of a weight's gradient in comparisons, as a share of its own gross norm; see `Gradient.gross`."""


@dataclass(slots=True)
class Gradient:
    """Gradient of one update."""

    loss: float
    parts: dict[str, Tensor]
    """Clipped gradients of the weights, by name."""
    gross: dict[str, float]
    """2-norm that each weight's gradient would have if the gradients of single samples were orthogonal. If it is much
    larger than the norm of the gradient, the samples cancel, and mostly rounding is left."""
    norm: float
    """2-norm of the whole gradient before clipping."""
    clip: float = 1.0
    """Factor by which the gradient was clipped."""

    @property
    def whole(self) -> float:
        """Gross norm of all weights together."""
        return math.hypot(*self.gross.values())

    def apart(self, other: State) -> tuple[float, str]:
        """Returns the relative distance of another gradient from this one, and the weight where it is largest.

        The distance of a weight's gradient is divided by its length, which counts as larger if samples cancel
        (`CANCELS`) or if it is small compared with the whole gradient (`FLOOR`).
        """
        worst = (0.0, "")
        for name, expected in self.parts.items():
            off = float((other[name] - expected).norm()) if name in other else float(expected.norm())
            size = max(float(expected.norm()), self.clip * max(CANCELS * self.gross[name], FLOOR * self.whole))
            worst = max(worst, (off / max(size, 1e-30), name))
        extra = [name for name, gradient in other.items() if name not in self.parts and float(gradient.norm())]
        return (math.inf, extra[0]) if extra else worst


def compare(actual: Sequence[State], expected: Sequence[Gradient]) -> list[tuple[float, str]]:
    """Compares the first and the last gradient of a step with the expected ones; see `Gradient.apart`."""
    moving = [gradient for gradient in expected if gradient.norm]
    if moving and not actual:
        return [(math.inf, "no update was made")]
    return [moving[0].apart(actual[0]), moving[-1].apart(actual[-1])] if moving else []


def way(names: Sequence[str], before: State, after: State, right: State) -> tuple[float, float]:
    """Returns the relative error of an update and the length of the right update.

    Args:
        names: Names of the weights to compare.
        before: Weights before the update.
        after: Weights after the update under test.
        right: Weights after the right update.

    Returns:
        (distance of `after` from `right`, divided by the length of the right update; that length).
    """
    off = math.hypot(*(float((after[name].double() - right[name].double()).norm()) for name in names))
    size = math.hypot(*(float((right[name].double() - before[name].double()).norm()) for name in names))
    return off / size if size else float(off > 0), size


def minibatches(count: int, options: OptimizerOptions, seed: int, step: int) -> list[list[int]]:
    """Returns the indices of the samples of each update of a step.

    An epoch contains each sample once; the sizes of its updates differ by at most 1. If an epoch has several updates,
    its order is random, from a generator seeded with (seed, step).
    """
    rng, batches = np.random.default_rng([seed, step]), list[list[int]]()
    limit = options.minibatch_samples
    parts = min(options.minibatches, count) if limit is None else math.ceil(count / limit)
    for _ in range(options.epochs):
        order = [int(i) for i in rng.permutation(count)] if parts > 1 else list(range(count))
        for part in range(parts):
            size = count // parts + (part < count % parts)
            batches.append(order[:size])
            order = order[size:]
    return batches


class ReferenceModel:
    """A model with its optimizer, which trains the weights or an adapter: ``W = W_0 + s B A``.

    Args:
        model: Model without an adapter; changed in place.
        recipe: Recipe of the model's key.
        options: Optimizer options; for a critic, those of the critic.
        rank: Rank of the adapter; 0 trains the weights.
    """

    def __init__(self, model: Any, recipe: Recipe, options: OptimizerOptions, rank: int = 0) -> None:
        self.model, self.recipe, self.options = model, recipe, options
        self.trained: dict[str, Tensor] = {}
        """Trained weights in float32 after the last update; those of an adapter have the learner's names."""
        self._base = {name: weight.detach().clone() for name, weight in model.named_parameters()} if rank else {}
        self._scale = recipe.lora.alpha / rank if rank else 0.0
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._updates = 0

    def freeze(self, layers: int) -> None:
        """Freezes the given number of lowest layers, and the input embeddings; 0 freezes nothing."""
        embeddings = self.model.get_input_embeddings().weight
        for name, weight in self.model.named_parameters() if layers else ():
            number = re.search(r"\.(\d+)\.", name)
            if weight is embeddings or (number and int(number[1]) < layers):
                weight.requires_grad_(False)

    def load(self, state: State) -> None:
        """Loads weights of the whole model; missing ones stay as they are."""
        names = self.model.state_dict().keys()
        self.model.load_state_dict({name: state[name] for name in names if name in state}, strict=False)

    def merged(self, trained: State) -> State:
        """Returns the weights of the whole model, given the trained ones."""
        state = self._base | ({} if self._base else dict(trained))
        for name in trained if self._base else ():
            if ".lora_A." in name:
                product = trained[name.replace(".lora_A.", ".lora_B.")].float() @ trained[name].float()
                state[matrix_of(name)] = self._base[matrix_of(name)] + self._scale * product
        return state

    def logits(self, tokens: Any, positions: Any) -> Tensor:
        """Returns the outputs that predict the tokens at some positions, (n, V) float64 or, of a critic, (n, K)."""
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        if self.options.autocast is None:
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        else:  # in mixed precision, only the inputs of the product with the vocabulary are rounded
            head = self.model.get_output_embeddings()
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.model.base_model(input_ids=ids, use_cache=False)[0]
            if head is None:  # a critic's is in float32
                hidden, weight, head = hidden.float(), self.model.score.weight.float(), self.model.score
            else:
                hidden, weight = (value.bfloat16().float() for value in (hidden, head.weight))
            logits = hidden @ weight.T + (0.0 if head.bias is None else head.bias)
        return logits[0, torch.from_numpy(np.asarray(positions) - 1)].double()

    def distribution(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, at the n trained tokens, all log-probs (n, V), those of the tokens (n,) and the entropies (n,)."""
        positions = trained_tokens(sample)
        every = torch.log_softmax(self.logits(sample.ids, positions) / self.recipe.rollout.temperature, -1)
        chosen = torch.from_numpy(sample.ids[positions].astype(np.int64))
        return every, every[torch.arange(len(positions)), chosen], -(every.exp() * every).sum(-1)

    @torch.no_grad()
    def look(self, samples: Sequence[Sample]) -> list[tuple[Floats, ...]]:
        """Returns statistics of each sample's trained tokens under these weights.

        Returns:
            For each sample, six arrays (n,): log-probs, entropies, variances of the log-prob, the quantiles of the
            tokens in their distributions, minus 1/2, with the vocabulary ordered by id and by falling probability, and
            the variance of these quantiles, ``(1 - sum of p^3) / 12``.
        """
        rows = []
        for sample in samples:
            every, logp, entropy = self.distribution(sample)
            share = every.exp()
            variance = (share * every.square()).sum(-1) - entropy.square()
            before = torch.arange(share.shape[1]) < torch.from_numpy(sample.ids[sample.mask].astype(np.int64))[:, None]
            below, likelier = (share * before).sum(-1), (share * (every > logp[:, None])).sum(-1)
            half = 0.5 * logp.exp() - 0.5
            spread = ((1 - share.pow(3).sum(-1)) / 12).clamp(min=0)
            parts = (logp, entropy, variance, below + half, likelier + half, spread)
            rows.append(tuple(part.numpy() for part in parts))
        return rows

    def update(self, count: int, make_loss: MakeLoss, step: int, before: State | None = None) -> list[Gradient]:
        """Applies the updates of one step and returns their gradients; all but the first and last have no parts.

        Args:
            count: Number of samples of the step.
            make_loss: Returns the losses of an update's samples.
            step: 0-based step, for the learning rate and the order of the samples.
            before: Trained weights to start from. Default: those after the last update.
        """
        trainable = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        start: State = (trainable | self.trained) if before is None else before
        names = start if self._base else trainable
        self.trained = {name: start[name].detach().float().clone() for name in names}
        gradients: list[Gradient] = []
        for rows in minibatches(count, self.options, self.recipe.seed, step):
            if len([gradient for gradient in gradients if gradient.norm]) > 1:
                gradients[-1].parts = {}
            gradients.append(self._gradient(len(rows), make_loss(rows)))
            self._apply(gradients[-1], step)
            self.load(self.merged(self.trained))
        return gradients

    def _gradient(self, count: int, row_loss: RowLoss) -> Gradient:
        """Returns the gradient of the trained weights in float32, summed over samples."""
        parts = {name: torch.zeros_like(weight) for name, weight in self.trained.items()}
        loss, squares = 0.0, dict.fromkeys(parts, 0.0)
        for i in range(count):
            part = row_loss(i)
            loss += float(part.detach())
            if part.requires_grad:
                part.backward()  # type: ignore[no-untyped-call]
            gradients = {name: w.grad.float() for name, w in self.model.named_parameters() if w.grad is not None}
            for name, gradient in self._of_trained(gradients).items():
                parts[name] += gradient
                squares[name] += float(gradient.square().sum())
            self.model.zero_grad(set_to_none=True)
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in parts.values()))
        return Gradient(loss, parts, {name: math.sqrt(square) for name, square in squares.items()}, norm)

    def _of_trained(self, of_model: State) -> dict[str, Tensor]:
        """Returns the gradients of the trained weights: ``dL/dB = s dL/dW A^T`` and ``dL/dA = s B^T dL/dW``."""
        if not self._base:
            return {name: of_model[name] for name in self.trained if name in of_model}
        of_adapter = {}
        for name in self.trained:
            if (whole := of_model.get(matrix_of(name))) is not None and ".lora_B." in name:
                of_adapter[name] = self._scale * whole @ self.trained[name.replace(".lora_B.", ".lora_A.")].T
            elif whole is not None:
                of_adapter[name] = self._scale * self.trained[name.replace(".lora_A.", ".lora_B.")].T @ whole
        return of_adapter

    def _apply(self, gradient: Gradient, step: int) -> None:
        """Clips a gradient and applies one update of AdamW to the float32 weights."""
        options = self.options
        if gradient.norm == 0:
            return
        self._updates += 1
        gradient.clip = min(1.0, options.max_grad_norm / gradient.norm) if options.max_grad_norm else 1.0
        rate, (first, second) = options.lr * rate_factor(step, self.recipe.steps, options), options.betas
        for name, weight in self.trained.items():
            clipped = gradient.parts[name] = gradient.parts[name] * gradient.clip
            mean, square = self._moments.get(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
            mean = first * mean + (1 - first) * clipped
            square = second * square + (1 - second) * clipped.square()
            self._moments[name] = mean, square
            unbiased = (square / (1 - second**self._updates)).sqrt() + options.eps
            decay = rate * options.weight_decay if weight.ndim > 1 else 0.0
            self.trained[name] = weight * (1 - decay) - rate * (mean / (1 - first**self._updates)) / unbiased


def matrix_of(name: str) -> str:
    """Returns the name of the matrix that an adapter's weight belongs to, given its name in peft's files."""
    return name.removeprefix("base_model.model.").replace(".lora_A.", ".").replace(".lora_B.", ".")


def rate_factor(step: int, steps: int, options: OptimizerOptions) -> float:
    """Returns the factor on the learning rate: a linear warm-up, then constant or half a cosine."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    angle = math.pi * (step - options.warmup_steps) / (steps - options.warmup_steps)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 + math.cos(angle)) / 2
