"""A second trainer, row by row in plain torch, whose losses, gradients and updates the real learner must match.

Nothing here is shared with `searchgym.train.learner`: no batches, padding, packing or hooks. AdamW is written from its
definition, and LoRA from the gradients of the whole matrices.
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
"""Function from a sample's number to its part of the loss."""
MakeLoss = Callable[[Sequence[int]], RowLoss]
"""Function from the numbers of an update's samples to the loss of each of them, in their order."""


FLOOR: Final = 1e-3
"""Share of all samples' gradients below which a weight's own is compared as if it were that long: attention's key
biases have a gradient of 0 and show rounding alone."""
CANCELS: Final = 0.1
"""Share of the length of its samples' gradients below which a gradient is compared as if it were that long."""


@dataclass(slots=True)
class Gradient:
    """Gradient of one update."""

    loss: float
    parts: dict[str, Tensor]
    """Gradients of the weights by name, clipped."""
    gross: dict[str, float]
    """2-norm that each weight's gradient would have if those of single samples were at right angles: where it is much
    larger than the gradient, samples cancel, and what is left of them is rounding."""
    norm: float
    """2-norm of the whole gradient before clipping."""
    clip: float = 1.0
    """What the gradient was multiplied by."""

    @property
    def whole(self) -> float:
        """Gross norm of all weights together."""
        return math.hypot(*self.gross.values())

    def apart(self, found: State) -> tuple[float, str]:
        """Returns how far another gradient is from this one, and the weight it is worst at.

        Distances are in lengths of the weight's own gradient, or more where samples cancel or where it hardly counts.
        """
        worst = (0.0, "")
        for name, wanted in self.parts.items():
            off = float((found[name] - wanted).norm()) if name in found else float(wanted.norm())
            size = max(float(wanted.norm()), self.clip * max(CANCELS * self.gross[name], FLOOR * self.whole))
            worst = max(worst, (off / max(size, 1e-30), name))
        extra = [name for name, given in found.items() if name not in self.parts and float(given.norm())]
        return (math.inf, extra[0]) if extra else worst


def compare(kept: Sequence[State], made: Sequence[Gradient]) -> list[tuple[float, str]]:
    """Returns how far the first and the last gradient of a step are from the right ones; see `Gradient.apart`."""
    moving = [gradient for gradient in made if gradient.norm]
    if moving and not kept:
        return [(math.inf, "no update was made")]
    return [moving[0].apart(kept[0]), moving[-1].apart(kept[-1])] if moving else []


def way(names: Sequence[str], before: State, after: State, right: State) -> tuple[float, float]:
    """Returns how far weights moved from where they should be, in lengths of their right way, and that length."""
    off = math.hypot(*(float((after[name].double() - right[name].double()).norm()) for name in names))
    size = math.hypot(*(float((right[name].double() - before[name].double()).norm()) for name in names))
    return off / size if size else float(off > 0), size


def minibatches(count: int, options: OptimizerOptions, seed: int, step: int) -> list[list[int]]:
    """Returns the samples of each update of a step: every sample once an epoch, in parts that differ by one at most.

    Where an epoch has several updates, its order is drawn anew by a generator seeded with (seed, step).
    """
    rng, made = np.random.default_rng([seed, step]), list[list[int]]()
    limit = options.minibatch_samples
    parts = min(options.minibatches, count) if limit is None else math.ceil(count / limit)
    for _ in range(options.epochs):
        order = [int(i) for i in rng.permutation(count)] if parts > 1 else list(range(count))
        for part in range(parts):
            size = count // parts + (part < count % parts)
            made.append(order[:size])
            order = order[size:]
    return made


class ReferenceModel:
    """A model with an optimizer of its own, which trains its weights or an adapter: ``W = W_0 + s B A``.

    Args:
        model: Changed in place; without adapter.
        recipe: Recipe of the model's key.
        options: Optimizer options, the critic's for a critic.
        rank: Rank of the adapter; 0 trains the weights.
    """

    def __init__(self, model: Any, recipe: Recipe, options: OptimizerOptions, rank: int = 0) -> None:
        self.model, self.recipe, self.options = model, recipe, options
        self.trained: dict[str, Tensor] = {}
        """Trained weights in float32 after the last update; an adapter's by the names of the learner's."""
        self._base = {name: weight.detach().clone() for name, weight in model.named_parameters()} if rank else {}
        self._scale = recipe.lora.alpha / rank if rank else 0.0
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._made = 0

    def freeze(self, layers: int) -> None:
        """Takes the lowest layers, and the embeddings below them, out of the training."""
        embeddings = self.model.get_input_embeddings().weight
        for name, weight in self.model.named_parameters() if layers else ():
            number = re.search(r"\.(\d+)\.", name)
            if weight is embeddings or (number and int(number[1]) < layers):
                weight.requires_grad_(False)

    def load(self, state: State) -> None:
        """Takes over weights, those of the whole model."""
        names = self.model.state_dict().keys()
        self.model.load_state_dict({name: state[name] for name in names if name in state}, strict=False)

    def merged(self, trained: State) -> State:
        """Returns the whole model's weights, given the trained ones."""
        state = self._base | ({} if self._base else dict(trained))
        for name in trained if self._base else ():
            if ".lora_A." in name:
                product = trained[name.replace(".lora_A.", ".lora_B.")].float() @ trained[name].float()
                state[matrix_of(name)] = self._base[matrix_of(name)] + self._scale * product
        return state

    def logits(self, tokens: Any, places: Any) -> Tensor:
        """Returns the outputs that predict the tokens at some positions, (n, V) float64 or, of a critic, (n, 1)."""
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        if self.options.autocast is None:
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        else:  # the product with the vocabulary, as the rule of mixed precision has it, in float32
            head = self.model.get_output_embeddings() or self.model.score
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.model.base_model(input_ids=ids, use_cache=False)[0]
            logits = hidden.float() @ head.weight.float().T + (0.0 if head.bias is None else head.bias)
        return logits[0, torch.from_numpy(np.asarray(places) - 1)].double()

    def distribution(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Returns all log-probs (n, V), those of the trained tokens (n,) and entropies (n,)."""
        places = trained_tokens(sample)
        every = torch.log_softmax(self.logits(sample.ids, places) / self.recipe.rollout.temperature, -1)
        chosen = torch.from_numpy(sample.ids[places].astype(np.int64))
        return every, every[torch.arange(len(places)), chosen], -(every.exp() * every).sum(-1)

    @torch.no_grad()
    def look(self, samples: Sequence[Sample]) -> list[tuple[Floats, ...]]:
        """Returns what these weights say of each sample's trained tokens.

        Returns:
            (n,) log-probs, entropies, variances of a log-prob, and the distances of the tokens' quantiles in their
            distributions from the mean, 0: in order of ids, and in order of falling probability.
        """
        rows = []
        for sample in samples:
            every, logp, entropy = self.distribution(sample)
            share = every.exp()
            variance = (share * every.square()).sum(-1) - entropy.square()
            before = torch.arange(share.shape[1]) < torch.from_numpy(sample.ids[sample.mask].astype(np.int64))[:, None]
            below, likelier = (share * before).sum(-1), (share * (every > logp[:, None])).sum(-1)
            half = 0.5 * logp.exp() - 0.5
            rows.append(tuple(part.numpy() for part in (logp, entropy, variance, below + half, likelier + half)))
        return rows

    def update(self, count: int, make_loss: MakeLoss, step: int, before: State | None = None) -> list[Gradient]:
        """Makes the updates of one step, and returns their gradients, of which the middle ones have no parts.

        Args:
            count: Number of the step's samples.
            make_loss: Makes the losses of an update's samples.
            step: 0-based step, for the learning rate and the order of the samples.
            before: Trained weights to start from. Default: those after the last update.
        """
        own = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        start: State = (own | self.trained) if before is None else before
        names = start if self._base else own
        self.trained = {name: start[name].detach().float().clone() for name in names}
        made: list[Gradient] = []
        for rows in minibatches(count, self.options, self.recipe.seed, step):
            if len([gradient for gradient in made if gradient.norm]) > 1:
                made[-1].parts = {}
            made.append(self._gradient(len(rows), make_loss(rows)))
            self._apply(made[-1], step)
            self.load(self.merged(self.trained))
        return made

    def _gradient(self, count: int, row_loss: RowLoss) -> Gradient:
        """Returns the gradient of the trained weights in float32, summed over samples."""
        parts = {name: torch.zeros_like(weight) for name, weight in self.trained.items()}
        loss, squares = 0.0, dict.fromkeys(parts, 0.0)
        for i in range(count):
            part = row_loss(i)
            loss += float(part.detach())
            if part.requires_grad:
                part.backward()  # type: ignore[no-untyped-call]
            given = {name: w.grad.float() for name, w in self.model.named_parameters() if w.grad is not None}
            for name, gradient in self._of_trained(given).items():
                parts[name] += gradient
                squares[name] += float(gradient.square().sum())
            self.model.zero_grad(set_to_none=True)
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in parts.values()))
        return Gradient(loss, parts, {name: math.sqrt(square) for name, square in squares.items()}, norm)

    def _of_trained(self, given: State) -> dict[str, Tensor]:
        """Returns gradients of the trained weights: ``dL/dB = s dL/dW A^T`` and ``dL/dA = s B^T dL/dW``."""
        if not self._base:
            return {name: given[name] for name in self.trained if name in given}
        made = {}
        for name in self.trained:
            if (whole := given.get(matrix_of(name))) is not None and ".lora_B." in name:
                made[name] = self._scale * whole @ self.trained[name.replace(".lora_B.", ".lora_A.")].T
            elif whole is not None:
                made[name] = self._scale * self.trained[name.replace(".lora_A.", ".lora_B.")].T @ whole
        return made

    def _apply(self, gradient: Gradient, step: int) -> None:
        """Clips a gradient and makes one update of AdamW on float32 weights."""
        options = self.options
        if gradient.norm == 0:
            return
        self._made += 1
        gradient.clip = min(1.0, options.max_grad_norm / gradient.norm) if options.max_grad_norm else 1.0
        rate, (first, second) = options.lr * rate_factor(step, self.recipe.steps, options), options.betas
        for name, weight in self.trained.items():
            clipped = gradient.parts[name] = gradient.parts[name] * gradient.clip
            mean, square = self._moments.get(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
            mean = first * mean + (1 - first) * clipped
            square = second * square + (1 - second) * clipped.square()
            self._moments[name] = mean, square
            unbiased = (square / (1 - second**self._made)).sqrt() + options.eps
            decay = rate * options.weight_decay if weight.ndim > 1 else 0.0
            self.trained[name] = weight * (1 - decay) - rate * (mean / (1 - first**self._made)) / unbiased


def matrix_of(name: str) -> str:
    """Returns the name of the matrix that an adapter's weight, named as in peft's files, is added to."""
    return name.removeprefix("base_model.model.").replace(".lora_A.", ".").replace(".lora_B.", ".")


def rate_factor(step: int, steps: int, options: OptimizerOptions) -> float:
    """Returns the factor on the learning rate: a linear warm-up, then constant or half a cosine."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    angle = math.pi * (step - options.warmup_steps) / (steps - options.warmup_steps)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * (1 + math.cos(angle)) / 2
