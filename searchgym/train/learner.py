"""The learner: samples in, one better model out. Plain torch, one process.

A step cuts its samples into minibatches (one update each), and each of those into micro-batches (one forward and
backward each, gradients added up). Losses are sums divided by the update's one denominator, so the cut into
micro-batches changes nothing but rounding.

The model is kept in evaluation mode: dropout would make the ratio of an unchanged model differ from 1. Nothing here
draws from a global generator; minibatches are shuffled by one seeded with (seed, step).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.errors import TrainingError, UsageError
from searchgym.train.batching import MicroBatch, collate, pack, trained_logits
from searchgym.train.losses import policy_sums, token_logp, token_weights
from searchgym.train.recipe import LossOptions, OptimizerOptions
from searchgym.train.samples import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Metrics = dict[str, float]
Flat = Sequence[npt.NDArray[np.float32]]
"""One (n,) array per sample: a number for each of its n trained tokens."""


def lr_scale(step: int, steps: int, options: OptimizerOptions) -> float:
    """Returns the share of the learning rate in a 0-based step: linear warm-up, then constant or half a cosine."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    done = (step - options.warmup_steps) / max(steps - options.warmup_steps, 1)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one update with their numbers per trained token."""

    samples: Sequence[Sample]
    values: Mapping[str, Flat]
    denominator: float


class Learner:
    """Updates a model from samples.

    Args:
        model: Trained in place; its weights keep their type and device.
        loss: Clips, coefficients, reduction.
        optimizer: AdamW, schedule, cut.
        steps: Steps of the whole run, for the schedule.
        seed: Of the shuffles.
        temperature: The sampler's.
        reference: Frozen model of the KL term; needed if `LossOptions.kl_coef` is above 0.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        loss: LossOptions,
        optimizer: OptimizerOptions,
        *,
        steps: int,
        seed: int = 0,
        temperature: float = 1.0,
        reference: PreTrainedModel | None = None,
    ) -> None:
        model.eval()  # type: ignore[no-untyped-call]
        self.model, self.reference = model, reference
        self.loss, self.options = loss, optimizer
        self.steps, self.seed, self.temperature = steps, seed, temperature
        self.version = 0
        """Updates made so far."""
        named = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in named if p.ndim >= 2], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0},
        ]
        first, second = optimizer.betas
        self.optimizer = torch.optim.AdamW(groups, lr=optimizer.lr, betas=(first, second), eps=optimizer.eps)

    # -- what a step does ------------------------------------------------------------------------------------------

    def policy_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the model by the clipped policy loss.

        Args:
            samples: With advantages; at least one.
            step: 0-based step of the run, for the learning rate and the shuffles.

        Returns:
            Means over trained tokens, and what the updates did.

        Raises:
            TrainingError: A loss, log-prob or gradient that is not finite; the weights are those of the last update.
        """
        several = self.options.minibatches * self.options.epochs > 1
        values: dict[str, Flat] = {
            "advantage": [s.advantage[s.mask] for s in samples],
            "sampler_logp": [s.sampler_logp[s.mask] for s in samples],
        }
        if several:
            values["old_logp"] = _known(samples, "old_logp") or self.logp(samples)
        if self.reference is not None:
            values["ref_logp"] = _known(samples, "ref_logp") or self.logp(samples, self.reference)
        return self._updates(samples, values, step, self._policy_loss)

    def supervised_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the model by maximum likelihood of the tokens in the samples' masks; see `policy_step`."""
        return self._updates(samples, {}, step, self._supervised_loss)

    def with_logp(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with `old_logp`, and `ref_logp` if there is a reference: for KL in the reward."""
        old = self.logp(samples)
        ref = [None] * len(samples) if self.reference is None else self.logp(samples, self.reference)
        return [
            dataclasses.replace(s, old_logp=_spread(s, own), ref_logp=None if other is None else _spread(s, other))
            for s, own, other in zip(samples, old, ref, strict=True)
        ]

    def logp(self, samples: Sequence[Sample], model: PreTrainedModel | None = None) -> list[npt.NDArray[np.float32]]:
        """Computes log-probs of trained tokens under the present weights, or under another model's.

        Returns:
            One (n,) float32 array per sample.
        """
        found: list[npt.NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(samples)
        with torch.no_grad():
            for rows, batch in self._micro_batches(samples, {}):
                logp = self._forward(batch, model or self.model)[0].cpu().numpy()
                ends = np.cumsum([int(samples[i].mask.sum()) for i in rows])
                for i, part in zip(rows, np.split(logp, ends[:-1]), strict=True):
                    found[i] = part
        return found

    # -- one update ------------------------------------------------------------------------------------------------

    def accumulate(
        self, samples: Sequence[Sample], values: Mapping[str, Flat], denominator: float, policy: bool = True
    ) -> Metrics:
        """Adds the gradients of samples to the model: a part of an update, or all of it.

        Args:
            samples: Whole update, or one rank's share.
            values: ``"advantage"``, ``"weight"``, ``"sampler_logp"``, and ``"old_logp"`` and ``"ref_logp"`` where used.
            denominator: Of the whole update; see `token_weights`.
            policy: The policy loss, or maximum likelihood (which asks for ``"weight"`` only).

        Returns:
            Sums over trained tokens; ``"loss"`` is divided by the denominator already.

        Raises:
            TrainingError: A loss that is not finite.
        """
        function = self._policy_loss if policy else self._supervised_loss
        return self._accumulate(_Part(samples, values, denominator), function)

    def apply(self, step: int) -> Metrics:
        """Clips the gradients, makes one optimizer update and clears them.

        Gradients that are all exactly 0 make no update: momentum and weight decay alone would move the weights.

        Raises:
            TrainingError: A gradient that is not finite; nothing was changed.
        """
        rate = self.options.lr * lr_scale(step, self.steps, self.options)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm or math.inf))
        try:
            if not math.isfinite(norm):
                raise TrainingError(f"the gradient's norm is {norm} in step {step + 1}: no update was made")
            if norm > 0:
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.step()
                self.version += 1
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return {"gradient_norm": norm, "learning_rate": rate, "updates": float(norm > 0)}

    def _updates(
        self,
        samples: Sequence[Sample],
        values: Mapping[str, Flat],
        step: int,
        loss: Callable[[MicroBatch], tuple[Tensor, Metrics]],
    ) -> Metrics:
        """Makes the updates of one step and averages their statistics."""
        if not any(sample.mask.any() for sample in samples):
            raise UsageError(f"{len(samples)} samples hold no token to train on: leave the step out")
        sums: Metrics = {}
        updates: list[Metrics] = []
        for indices in self._minibatches(len(samples), step):
            part = [samples[i] for i in indices]
            weights, denominator = token_weights(part, self.loss.reduction, self.loss.constant_length)
            own = {name: [flat[i] for i in indices] for name, flat in values.items()} | {"weight": weights}
            _add(sums, self._accumulate(_Part(part, own, denominator), loss))
            updates.append(self.apply(step))
        return _means(sums, updates)

    def _minibatches(self, count: int, step: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the indices of each update's samples: shuffled anew in each epoch, near-equal in number."""
        rng = np.random.default_rng([self.seed, step])
        for _ in range(self.options.epochs):
            order = rng.permutation(count) if self.options.minibatches > 1 else np.arange(count)
            yield from (part for part in np.array_split(order, self.options.minibatches) if len(part))

    def _accumulate(self, part: _Part, loss: Callable[[MicroBatch], tuple[Tensor, Metrics]]) -> Metrics:
        """Runs forward and backward over the micro-batches of a part."""
        sums: Metrics = {}
        for rows, batch in self._micro_batches(part.samples, part.values):
            total, statistics = loss(batch)
            scaled = total / part.denominator
            value = float(scaled.detach())
            if not math.isfinite(value):
                self.optimizer.zero_grad(set_to_none=True)
                names = ", ".join(part.samples[i].episode_id for i in rows[:3])
                raise TrainingError(f"the loss is {value} on {names}{', ...' if len(rows) > 3 else ''}")
            scaled.backward()  # type: ignore[no-untyped-call]
            tokens = {
                "loss": value,
                "tokens_trained": float(len(batch.targets)),
                "tokens_read": float(sum(len(part.samples[i].ids) for i in rows)),
                "tokens_padded": float(batch.ids.numel()),
                "micro_batches": 1.0,
            }
            _add(sums, statistics | tokens)
        return sums

    # -- forward passes --------------------------------------------------------------------------------------------

    def _micro_batches(
        self, samples: Sequence[Sample], values: Mapping[str, Flat]
    ) -> Iterator[tuple[list[int], MicroBatch]]:
        """Yields (indices of samples, tensors)."""
        for rows in pack([len(s.ids) for s in samples], self.options.micro_batch_tokens):
            yield rows, collate(samples, values, rows, self.model.device)

    def _forward(self, batch: MicroBatch, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        """Returns (N,) log-probs and (N,) entropies of the trained tokens."""
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.options.autocast == "bfloat16"):
            logits = trained_logits(model, batch)
        return token_logp(logits, batch.targets, self.temperature, self.loss.entropy_coef > 0)

    def _policy_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed policy loss of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch, self.model)
        values = batch.values
        old = values.get("old_logp", logp.detach())
        sums = policy_sums(
            logp,
            entropy,
            old,
            values["advantage"],
            values["weight"],
            values.get("ref_logp"),
            self.loss,
            sampler_logp=values["sampler_logp"],
            rows=batch.rows,
            runs=batch.runs,
        )
        difference = (old - values["sampler_logp"]).abs()
        return sums.loss, sums.statistics | {
            "sampler_difference": float(difference.sum()),
            "max_sampler_difference": float(difference.max()) if len(difference) else 0.0,
        }

    def _supervised_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed negative log-likelihood of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch, self.model)
        loss = -(batch.values["weight"] * logp).sum()
        return loss, {"nll": -float(logp.detach().sum()), "entropy": float(entropy.detach().sum())}

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what, with the weights, makes the next step the same: the optimizer's moments and the version."""
        return {"optimizer": self.optimizer.state_dict(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a copy of what `state_dict` returned."""
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.version = state["version"]

    def check_weights(self) -> None:
        """Raises a TrainingError if a weight is not finite."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise TrainingError(f"{name} holds a weight that is not finite")


def _known(samples: Sequence[Sample], name: str) -> Flat | None:
    """Returns what was computed ahead for every sample, or None."""
    found = [(getattr(s, name), s.mask) for s in samples]
    return None if any(values is None for values, _ in found) else [values[mask] for values, mask in found]


def _spread(sample: Sample, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns numbers of trained tokens as a (T,) array, 0 elsewhere."""
    spread = np.zeros(len(sample.ids), np.float32)
    spread[sample.mask] = values
    return spread


def _add(sums: Metrics, more: Metrics) -> None:
    """Adds numbers by name; those called ``max_...`` keep the largest."""
    for name, value in more.items():
        sums[name] = max(sums.get(name, value), value) if name.startswith("max_") else sums.get(name, 0.0) + value


def _means(sums: Metrics, updates: Sequence[Metrics]) -> Metrics:
    """Turns sums over a step into the means that are reported."""
    totals = {"tokens_trained", "tokens_read", "tokens_padded", "micro_batches"}
    tokens, count = max(sums["tokens_trained"], 1.0), len(updates)
    means = {
        name: value if name in totals or name.startswith("max_") else value / (count if name == "loss" else tokens)
        for name, value in sums.items()
    }
    return means | {
        "gradient_norm": sum(u["gradient_norm"] for u in updates) / count,
        "learning_rate": updates[-1]["learning_rate"],
        "updates": sum(u["updates"] for u in updates),
    }
