"""A second trainer, row by row in plain torch, whose losses, gradients and updates the real learner must match.

Nothing here is shared with `searchgym.train.learner`: no batches, padding, packing or hooks. AdamW is written
from its definition, and LoRA from the gradients of the whole matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import OptimizerOptions
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfcheck.formulas.losses import trained_tokens
from searchgym.train.selfcheck.formulas.sampling import Seen

State = Mapping[str, Tensor]
"""Weights by name."""
RowLoss = Callable[[int], Tensor]
"""Function from a sample's number to its part of the loss."""
MakeLoss = Callable[[Sequence[int]], RowLoss]
"""Function from the numbers of an update's samples to the loss of each of them, in their order."""


@dataclass(slots=True)
class Gradient:
    """Gradient of one update."""

    loss: float
    parts: dict[str, Tensor]
    """Gradients of the weights by name, clipped once the update is made."""
    gross: float
    """2-norm that the gradient would have if those of single samples were at right angles: where it is much larger than
    `norm`, samples cancel, and what is left of them is rounding."""
    excess: dict[str, float]
    """The same for each weight's own gradient, in lengths of that gradient."""
    norm: float = 0.0
    """2-norm before clipping."""


@dataclass(slots=True)
class Updated:
    """The updates of one step."""

    first: Gradient | None = None
    last: Gradient | None = None
    """The first and the last gradient that is not 0."""
    means: list[tuple[float, float, float]] = field(default_factory=list)
    """Loss, norm and gross norm of each update."""

    def add(self, gradient: Gradient) -> None:
        """Takes the next update."""
        if gradient.norm:
            self.first, self.last = self.first or gradient, gradient
        self.means.append((gradient.loss, gradient.norm, gradient.gross))

    @property
    def loss(self) -> float:
        """Mean loss."""
        return float(np.mean([loss for loss, _, _ in self.means]))

    @property
    def norm(self) -> float:
        """Mean 2-norm of the gradients before clipping."""
        return float(np.mean([norm for _, norm, _ in self.means]))

    @property
    def gross(self) -> float:
        """Mean of `Gradient.gross`."""
        return float(np.mean([gross for _, _, gross in self.means]))


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


class Shadow:
    """A model with an optimizer of its own.

    Args:
        model: Changed in place.
        recipe: Recipe of the model's key.
        options: Optimizer options, the critic's for a critic.
    """

    def __init__(self, model: Any, recipe: Recipe, options: OptimizerOptions) -> None:
        self.model, self.recipe, self.options = model, recipe, options
        self.dtype = next(model.parameters()).dtype
        self.masters: dict[str, Tensor] = {}
        """Weights in float32 after the last update."""
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
        """Takes over weights."""
        names = self.model.state_dict().keys()
        self.model.load_state_dict({name: state[name] for name in names if name in state}, strict=False)

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
    def look(self, samples: Sequence[Sample]) -> Seen:
        """Returns what the present weights say of samples."""
        rows = []
        for sample in samples:
            every, logp, entropy = self.distribution(sample)
            share = every.exp()
            variance = (share * every.square()).sum(-1) - entropy.square()
            before = torch.arange(share.shape[1]) < torch.from_numpy(sample.ids[sample.mask].astype(np.int64))[:, None]
            below, likelier = (share * before).sum(-1), (share * (every > logp[:, None])).sum(-1)
            half = 0.5 * logp.exp() - 0.5
            rows.append([part.numpy() for part in (logp, entropy, variance, below + half, likelier + half)])
        return Seen(*([row[i] for row in rows] for i in range(5)))

    def update(self, count: int, make_loss: MakeLoss, step: int, before: State | None = None) -> Updated:
        """Makes the updates of one step.

        Args:
            count: Number of the step's samples.
            make_loss: Makes the losses of an update's samples.
            step: 0-based step, for the learning rate and the order of the samples.
            before: Weights to start from, with an adapter's by their own names. Default: those after the last update.
        """
        named = dict(self.model.named_parameters())
        start = named | (self.masters if before is None else dict(before))
        masters = {n: start[n].detach().float().clone() for n, p in named.items() if p.requires_grad}
        made = Updated()
        for rows in minibatches(count, self.options, self.recipe.seed, step):
            gradient = self._gradient(len(rows), make_loss(rows), masters)
            self._apply(masters, gradient, step)
            made.add(gradient)
            with torch.no_grad():
                for name, weight in masters.items():
                    named[name].copy_(weight)
        self.masters = masters
        return made

    def _gradient(self, count: int, row_loss: RowLoss, names: Iterable[str]) -> Gradient:
        """Returns the gradient of some of the model's weights in float32, summed over samples."""
        named = dict(self.model.named_parameters())
        parts = {name: torch.zeros(named[name].shape) for name in names}
        loss, squares = 0.0, dict.fromkeys(parts, 0.0)
        for i in range(count):
            part = row_loss(i)
            loss += float(part.detach())
            if part.requires_grad:
                part.backward()  # type: ignore[no-untyped-call]
            for name, parameter in named.items():
                if name in parts and parameter.grad is not None:
                    parts[name] += parameter.grad.float()
                    squares[name] += float(parameter.grad.float().square().sum())
                parameter.grad = None
        excess = {name: math.sqrt(squares[name]) / max(float(parts[name].norm()), 1e-30) for name in parts}
        return Gradient(loss, parts, math.sqrt(sum(squares.values())), excess)

    def _apply(self, masters: dict[str, Tensor], gradient: Gradient, step: int) -> None:
        """Clips a gradient and makes one update of AdamW on float32 weights."""
        options, parts = self.options, gradient.parts
        gradient.norm = math.sqrt(sum(float(g.double().square().sum()) for g in parts.values()))
        if gradient.norm == 0:
            return
        self._made += 1
        scale = min(1.0, options.max_grad_norm / gradient.norm) if options.max_grad_norm else 1.0
        rate, (first, second) = options.lr * rate_factor(step, self.recipe.steps, options), options.betas
        for name in parts:
            weight, clipped = masters[name], parts[name] * scale
            parts[name] = clipped
            mean, square = self._moments.get(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
            mean = first * mean + (1 - first) * clipped
            square = second * square + (1 - second) * clipped.square()
            self._moments[name] = mean, square
            unbiased = (square / (1 - second**self._made)).sqrt() + options.eps
            decay = rate * options.weight_decay if weight.ndim > 1 else 0.0
            masters[name] = weight * (1 - decay) - rate * (mean / (1 - first**self._made)) / unbiased


class AdapterShadow(Shadow):
    """A model whose LoRA adapter is trained: ``W = W_0 + s B A``, ``dL/dB = s dL/dW A^T``, ``dL/dA = s B^T dL/dW``.

    Args:
        model: The model without adapter, in float32.
        recipe: Recipe of the model's key.
        options: Optimizer options.
    """

    def __init__(self, model: Any, recipe: Recipe, options: OptimizerOptions) -> None:
        super().__init__(model, recipe, options)
        self._base = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self._scale = recipe.lora.alpha / recipe.lora.rank
        self.adapter: dict[str, Tensor] = {}
        """Weights of the adapter after the last update, by the names of the learner's."""

    def merged(self, adapter: State) -> dict[str, Tensor]:
        """Returns the whole model's weights with an adapter's product added."""
        state = dict(self._base)
        for name in adapter:
            if ".lora_A." in name:
                place = matrix_of(name)
                product = adapter[name.replace(".lora_A.", ".lora_B.")].float() @ adapter[name].float()
                state[place] = self._base[place] + self._scale * product
        return state

    def update(self, count: int, make_loss: MakeLoss, step: int, before: State | None = None) -> Updated:
        """Makes the updates of one step on the adapter given as `before`; see `Shadow.update`."""
        assert before is not None
        self.adapter = {name: weight.detach().float().clone() for name, weight in before.items()}
        made = Updated()
        for rows in minibatches(count, self.options, self.recipe.seed, step):
            self.load(self.merged(self.adapter))
            whole = self._gradient(len(rows), make_loss(rows), {matrix_of(name) for name in self.adapter})
            excess = {name: whole.excess[matrix_of(name)] for name in self.adapter}
            gradient = Gradient(whole.loss, {}, whole.gross, excess)
            for name in self.adapter:
                of_matrix = self._scale * whole.parts[matrix_of(name)]
                if ".lora_B." in name:
                    gradient.parts[name] = of_matrix @ self.adapter[name.replace(".lora_B.", ".lora_A.")].T
                else:
                    gradient.parts[name] = self.adapter[name.replace(".lora_A.", ".lora_B.")].T @ of_matrix
            self._apply(self.adapter, gradient, step)
            made.add(gradient)
        return made


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
