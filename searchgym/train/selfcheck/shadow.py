"""A second trainer, row by row in plain torch, whose losses, gradients and updates the real learner must match.

Nothing here is shared with `searchgym.train.learner`: no batches, padding, packing or hooks. Losses and AdamW are
written from their definitions, and LoRA from the gradients of the whole matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.options import LossOptions, OptimizerOptions
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfcheck.formulas import Floats, shares

State = Mapping[str, Tensor]
"""Weights by name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model says of the trained tokens of some samples: one array per sample, in float64."""

    logp: list[Floats]
    """Log-probs of the tokens."""
    entropy: list[Floats]
    """Entropies of the distributions that they were drawn from."""
    variance: list[Floats]
    """Variances of the log-prob of a token drawn from these distributions."""
    quantile: list[Floats]
    """Distances of the tokens' quantiles in their distributions from the mean, 0, in order of ids."""
    ranked: list[Floats]
    """The same in order of falling probability."""


@dataclass(frozen=True, slots=True)
class Updated:
    """Means over the updates of one step."""

    loss: float
    norm: float
    """2-norm of the gradient before clipping."""
    gross: float
    """2-norm that the gradient would have if those of single samples were at right angles: where it is much larger than
    `norm`, samples cancel, and what is left of them is rounding."""


def trained_tokens(sample: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the positions of the model's own tokens."""
    return np.flatnonzero(sample.mask)


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

    def load(self, state: State) -> None:
        """Takes over weights."""
        names = self.model.state_dict().keys()
        self.model.load_state_dict({name: state[name] for name in names if name in state}, strict=False)

    def logits(self, sample: Sample, places: Any) -> Tensor:
        """Returns the outputs that predict the tokens at some positions, (n, V) float64 or, of a critic, (n, 1)."""
        ids = torch.from_numpy(sample.ids.astype(np.int64))[None]
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
        every = torch.log_softmax(self.logits(sample, places) / self.recipe.rollout.temperature, -1)
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

    def update(
        self, samples: Sequence[Sample], row_loss: Callable[[int], Tensor], step: int, before: State | None = None
    ) -> Updated:
        """Makes the updates of one step.

        Args:
            samples: All samples of the step.
            row_loss: Function from a sample's number to its part of the loss.
            step: 0-based step, for the learning rate.
            before: Weights to start from, with an adapter's by their own names. Default: those after the last update.
        """
        named = dict(self.model.named_parameters())
        start = named | (self.masters if before is None else dict(before))
        masters = {n: start[n].detach().float().clone() for n, p in named.items() if p.requires_grad}
        made = []
        for _ in range(self.options.epochs):
            loss, gross, gradients = self._gradients(len(samples), row_loss, masters)
            made.append((loss, self._apply(masters, gradients, step), gross))
            with torch.no_grad():
                for name, weight in masters.items():
                    named[name].copy_(weight)
        self.masters = masters
        return Updated(*(float(np.mean(numbers)) for numbers in zip(*made, strict=True)))

    def _gradients(
        self, count: int, row_loss: Callable[[int], Tensor], names: Iterable[str]
    ) -> tuple[float, float, dict[str, Tensor]]:
        """Returns loss, gross norm and float32 gradients of some of the model's weights, summed over samples."""
        named = dict(self.model.named_parameters())
        gradients = {name: torch.zeros(named[name].shape) for name in names}
        loss = gross = 0.0
        for i in range(count):
            part = row_loss(i)
            loss += float(part.detach())
            if part.requires_grad:
                part.backward()  # type: ignore[no-untyped-call]
            for name, parameter in named.items():
                if name in gradients and parameter.grad is not None:
                    gradients[name] += parameter.grad.float()
                    gross += float(parameter.grad.float().square().sum())
                parameter.grad = None
        return loss, math.sqrt(gross), gradients

    def _apply(self, masters: dict[str, Tensor], gradients: Mapping[str, Tensor], step: int) -> float:
        """Makes one update of AdamW on float32 weights; returns the gradient's norm before clipping."""
        options = self.options
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        if norm == 0:
            return 0.0
        self._made += 1
        scale = min(1.0, options.max_grad_norm / norm) if options.max_grad_norm else 1.0
        rate, (first, second) = options.lr * rate_factor(step, self.recipe.steps, options), options.betas
        for name, gradient in gradients.items():
            weight, clipped = masters[name], gradient * scale
            mean, square = self._moments.get(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
            mean = first * mean + (1 - first) * clipped
            square = second * square + (1 - second) * clipped.square()
            self._moments[name] = mean, square
            unbiased = (square / (1 - second**self._made)).sqrt() + options.eps
            decay = rate * options.weight_decay if weight.ndim > 1 else 0.0
            masters[name] = weight * (1 - decay) - rate * (mean / (1 - first**self._made)) / unbiased
        return norm


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

    def update(
        self, samples: Sequence[Sample], row_loss: Callable[[int], Tensor], step: int, before: State | None = None
    ) -> Updated:
        """Makes the updates of one step on the adapter given as `before`; see `Shadow.update`."""
        assert before is not None
        self.adapter = {name: weight.detach().float().clone() for name, weight in before.items()}
        made = []
        for _ in range(self.options.epochs):
            self.load(self.merged(self.adapter))
            loss, gross, whole = self._gradients(len(samples), row_loss, {matrix_of(name) for name in self.adapter})
            gradients = {}
            for name in self.adapter:
                of_matrix = self._scale * whole[matrix_of(name)]
                if ".lora_B." in name:
                    gradients[name] = of_matrix @ self.adapter[name.replace(".lora_B.", ".lora_A.")].T
                else:
                    gradients[name] = self.adapter[name.replace(".lora_A.", ".lora_B.")].T @ of_matrix
            made.append((loss, self._apply(self.adapter, gradients, step), gross))
        return Updated(*(float(np.mean(numbers)) for numbers in zip(*made, strict=True)))


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


# -- losses --------------------------------------------------------------------------------------------------------


def policy_loss(
    shadow: Shadow, samples: Sequence[Sample], old: Sequence[Floats], reference: Sequence[Floats] | None
) -> Callable[[int], Tensor]:
    """Returns the clipped policy loss of a sample by its number.

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
    """Returns PPO's loss of each token, given the log-ratios of one sequence."""
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
    """Returns the estimate of the KL divergence, given ``log pi - log pi_ref``."""
    if options.kl_estimator == "k1":
        return above
    if options.kl_estimator == "k2":
        return above * above / 2
    k3 = torch.expm1(torch.where(above > -20, -above, 20.0)) + above
    return k3 if options.kl_cap is None else torch.where(k3 < options.kl_cap, k3, options.kl_cap)


def units(sample: Sample, options: LossOptions) -> list[int]:
    """Returns the number of trained tokens in each unit of LLDS: each unbroken run of them, or all."""
    places = trained_tokens(sample)
    if options.llds_unit == "response":
        return [len(places)]
    starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1] + 1]
    return [end - start for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def fallen(gap: Tensor, advantage: Tensor, lengths: Sequence[int]) -> Tensor:
    """Returns LLDS of each token: its lost log-likelihood, if its unit lost some and the advantage is at least 0."""
    gates: list[bool] = []
    at, fixed = 0, gap.detach()
    for length in lengths:
        gates += [float(fixed[at : at + length].sum()) < 0] * length
        at += length
    return torch.where(torch.tensor(gates, dtype=torch.bool) & (advantage >= 0), (-gap).clamp(min=0), 0.0)


def likelihood_loss(shadow: Shadow, samples: Sequence[Sample]) -> Callable[[int], Tensor]:
    """Returns the negative log-likelihood of a sample by its number."""
    share = shares(samples, [int(sample.mask.sum()) for sample in samples], shadow.recipe.loss)
    return lambda i: -share[i] * shadow.distribution(samples[i])[1].sum()


def value_loss(shadow: Shadow, samples: Sequence[Sample], places: Sequence[Any]) -> Callable[[int], Tensor]:
    """Returns the critic's loss of a sample by its number, given the positions that have a value."""
    clip, total = shadow.recipe.critic.value_clip, sum(map(len, places))

    def loss(i: int) -> Tensor:
        sample, at = samples[i], places[i]
        assert sample.value is not None
        assert sample.returns is not None
        value = shadow.logits(sample, at)[:, 0]
        wanted, before = (torch.from_numpy(row[at].astype(np.float64)) for row in (sample.returns, sample.value))
        error = (value - wanted).square()
        if clip is not None:
            near = torch.minimum(torch.maximum(value, before - clip), before + clip)
            error = torch.maximum(error, (near - wanted).square())
        return error.sum() / (2 * total)

    return loss
