"""A model under training: forward passes over samples, and updates by AdamW, split into micro-batches.

A step splits its samples into minibatches (one update each), and every minibatch into micro-batches (one forward and
one backward pass each, gradients summed), which the ranks share. A loss is a sum divided by the update's single
denominator, so the splits change nothing except rounding.

Dropout stays off: it would make the ratio of an unchanged model differ from 1. No random number comes from a global
generator; minibatches are shuffled by a generator seeded with (seed, step).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.errors import TrainingError, UsageError
from searchgym.rollout.transformers.precision import head_of, mixed_precision
from searchgym.train.algorithms.loss_options import Reduction
from searchgym.train.algorithms.losses import token_logp, token_weights
from searchgym.train.algorithms.samples import Sample, Targets, model_targets
from searchgym.train.learner.batching import (
    Flat,
    Metrics,
    MicroBatch,
    Ranks,
    add,
    micro_batches,
    minibatches,
    trained_logits,
)
from searchgym.train.learner.head import Scores, scoring
from searchgym.train.learner.saved import load_state, save_state
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOTALS: Final = ("tokens_trained", "tokens_read", "tokens_padded", "micro_batches")
"""Names of a step's metrics that are sums, not means."""
Loss = Callable[[MicroBatch], tuple[Tensor, Metrics]]
"""Function of a micro-batch that returns the summed loss, not yet divided, and sums for the metrics."""


def lr_scale(step: int, steps: int, options: OptimizerOptions) -> float:
    """Returns the learning rate's factor in a 0-based step: linear warm-up, then constant or half a cosine."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    done = (step - options.warmup_steps) / max(steps - options.warmup_steps, 1)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Updater:
    """Computes gradients of a model and updates it with AdamW in this process; only matrices have weight decay.

    Args:
        model: Model to train in place; its weights keep their type and device.
        options: Options of the optimizer.
        steps: Number of steps of the whole run, for the schedule.
    """

    def __init__(self, model: PreTrainedModel, options: OptimizerOptions, steps: int) -> None:
        self.model, self.options, self.steps = model, options, steps
        self.version = 0
        """Number of updates made so far."""
        named = [p for p in model.parameters() if p.requires_grad]
        dimensions = [len(getattr(p, "ds_shape", p.shape)) for p in named]  # DeepSpeed flattens a sharded parameter
        matrices = [p for p, n in zip(named, dimensions, strict=True) if n >= 2]
        others = [p for p, n in zip(named, dimensions, strict=True) if n < 2]
        decays = ((matrices, options.weight_decay), (others, 0.0))
        groups = [{"params": params, "weight_decay": decay} for params, decay in decays if params]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=True)

    def __call__(self, **inputs: Any) -> Any:
        """Runs the model."""
        return self.model(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Accumulates the gradients of a micro-batch's loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Clears the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self, step: int) -> dict[str, float]:
        """Clips the gradients, makes one optimizer update and clears the gradients.

        If all gradients are exactly 0, no update is made, because momentum and weight decay would still change the
        weights.

        Args:
            step: 0-based step of the run.

        Returns:
            ``gradient_norm`` (before clipping), ``learning_rate``, and ``updates`` (1 or 0).

        Raises:
            TrainingError: A gradient is not finite; the weights are unchanged.
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
            self.clear()
        return {"gradient_norm": norm, "learning_rate": rate, "updates": float(norm > 0)}

    # -- state -----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Returns the state of the model by name, without copying it."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Writes the model, the optimizer's state and the version to a folder; see `save_state`."""
        save_state(self.model, self.optimizer, self.version, folder)

    def load(self, folder: Path) -> None:
        """Restores model, optimizer and version from a folder that `save` wrote; see `load_state`."""
        self.version = load_state(self.model, self.optimizer, folder)

    def check_weights(self) -> None:
        """Raises a TrainingError if a weight is not finite."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise TrainingError(f"{name} holds a weight that is not finite")


class TrainedModel:
    """Runs one model over samples and updates it by a given loss.

    Args:
        updater: Updater of the model, with its optimizer.
        options: How a step is split, and the number type of matrix products.
        seed: Seed of the shuffles.
        ranks: Processes that share the work. Default: only this process.
        targets: Selects the tokens of a sample to learn from. Default: the tokens that the model wrote.
    """

    def __init__(
        self,
        updater: Updater,
        options: OptimizerOptions,
        seed: int,
        ranks: Ranks | None = None,
        targets: Targets = model_targets,
    ) -> None:
        updater.model.train(updater.model.is_gradient_checkpointing)  # checkpointing works in training mode only
        self.updater, self.options, self.seed = updater, options, seed
        self._head = head_of(updater.model)
        self._scores: bool | None = None if isinstance(self._head, torch.nn.Linear) else False
        """True if the model returns what its head returns, so that the head can return `scores`; None: not yet checked.
        """
        self.ranks, self.targets = ranks or Ranks(), targets

    def logits(self, batch: MicroBatch, other: PreTrainedModel | None = None) -> Tensor:
        """Computes the logits that predict a micro-batch's targets.

        Args:
            batch: The micro-batch.
            other: A model to run instead of the trained one.

        Returns:
            (N, labels), one row per target.
        """
        run: Callable[..., Any] = other or self.updater
        model: Any = other or self.updater.model
        with mixed_precision(model) if self.options.autocast == "bfloat16" else contextlib.nullcontext():
            return trained_logits(model, batch, run, self._head if other is None else None)

    def scores(
        self,
        batch: MicroBatch,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
        other: PreTrainedModel | None = None,
    ) -> Scores:
        """Computes the log-probs and entropies of a micro-batch's targets without whole logits.

        Models that change logits after their output layer, as Gemma 2 caps them, need the whole logits. The first call
        notices, since such a model changes the scores that the layer returns.

        Args:
            batch: The micro-batch.
            temperature: Divisor of the logits.
            entropy_gradient: If True, entropies have a gradient.
            other: A model of the same kind to run instead of the trained one.
        """
        if self._scores is not False:
            mixed, head = self.options.autocast == "bfloat16", self._head if other is None else head_of(other)
            options = {"mixed": mixed, "entropy_gradient": entropy_gradient}
            with (
                torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=mixed),
                scoring(head, batch.keep, batch.targets, temperature, **options) as calls,
            ):
                returned = (other or self.updater)(input_ids=batch.ids, use_cache=False).logits[0]
            if self._scores is None:
                expected = torch.stack(calls[0], -1)
                self._scores = torch.allclose(returned.detach(), expected.detach(), 0.0, 0.0, equal_nan=True)
            if self._scores:
                return Scores(*returned.unbind(-1))
        return Scores(*token_logp(self.logits(batch, other), batch.targets, temperature, entropy_gradient))

    def per_token(self, samples: Sequence[Sample], function: Callable[[MicroBatch], Tensor]) -> Flat:
        """Computes one number per target without gradients; every rank gets the numbers of all samples.

        Args:
            samples: At least one.
            function: Maps a micro-batch to (N,) numbers.

        Returns:
            One (n,) float32 array per sample.
        """
        computed: dict[int, npt.NDArray[np.float32]] = {}
        device = self.updater.model.device
        with torch.no_grad():
            for rows, batch, counts in micro_batches(samples, {}, self.options, self.ranks, device, self.targets):
                numbers = function(batch).float().cpu().numpy()
                ends = np.cumsum([len(self.targets(samples[i])) for i in rows])
                if counts:
                    computed |= zip(rows, np.split(numbers, ends[:-1]), strict=True)
        by_sample = {i: numbers for of_rank in self.ranks.gather(computed) for i, numbers in of_rank.items()}
        return [by_sample[i] for i in range(len(samples))]

    def update(
        self,
        samples: Sequence[Sample],
        values: Mapping[str, Flat],
        step: int,
        loss: Loss,
        reduction: Reduction = "token-mean",
        constant_length: int | None = None,
    ) -> Metrics:
        """Makes the updates of one step.

        Args:
            samples: Samples, at least one with a target.
            values: Numbers per target, by name.
            step: 0-based step of the run, for the learning rate and the shuffles.
            loss: Loss of a micro-batch.
            reduction: See `token_weights`.
            constant_length: See `token_weights`.

        Returns:
            Means over targets, and the metrics of the updates.

        Raises:
            TrainingError: A loss or gradient is not finite; the weights are those of the last update.
            UsageError: No sample has a target, or one has more tokens than the model reads.
        """
        if not any(len(self.targets(sample)) for sample in samples):
            raise UsageError(f"{len(samples)} samples have no token to train on: skip the step")
        self._check_lengths(samples)
        sums: Metrics = {}
        updates: list[Metrics] = []
        for indices in minibatches(len(samples), self.options, self.seed, step):
            minibatch = [samples[i] for i in indices]
            weights, denominator = token_weights(minibatch, reduction, constant_length, self.targets)
            if not denominator:
                continue
            chosen = {name: [flat[i] for i in indices] for name, flat in values.items()} | {"weight": weights}
            add(sums, self.accumulate(minibatch, chosen, denominator, loss))
            updates.append(self.updater.apply(step))
        tokens = max(sums["tokens_trained"], 1.0)
        divisors = {"loss": len(updates), **dict.fromkeys(TOTALS, 1)}
        means = {
            name: value if name.startswith("max_") else value / divisors.get(name, tokens)
            for name, value in sums.items()
        }
        return means | {
            "gradient_norm": sum(u["gradient_norm"] for u in updates) / len(updates),
            "learning_rate": updates[-1]["learning_rate"],
            "updates": sum(u["updates"] for u in updates),
        }

    def _check_lengths(self, samples: Sequence[Sample]) -> None:
        """Raises a UsageError if a sample has more tokens than the model reads."""
        most = getattr(self.updater.model.config, "max_position_embeddings", None) or math.inf
        for sample in samples:
            if len(sample.ids) > most:
                raise UsageError(
                    f"{sample.episode_id} has {len(sample.ids)} tokens, the model reads at most {most}: shorten the "
                    "observations or the outputs (max_observation_words, max_turns, rollout.max_tokens)"
                )

    def accumulate(
        self, samples: Sequence[Sample], values: Mapping[str, Flat], denominator: float, loss: Loss
    ) -> Metrics:
        """Adds the gradients of one update to the model, without an optimizer step; each rank processes its share.

        Args:
            samples: Samples of the whole update.
            values: Numbers by name, one per target token of each sample; ``"weight"`` is required.
            denominator: Number that divides the loss of the whole update; see `token_weights`.
            loss: Function that computes the loss of a micro-batch.

        Returns:
            Metrics summed over all ranks; ``"loss"`` is already divided by the denominator.

        Raises:
            TrainingError: A loss is not finite.
        """
        sums: Metrics = {}
        not_finite: list[tuple[float, str]] = []
        device = self.updater.model.device
        for rows, batch, counts in micro_batches(samples, values, self.options, self.ranks, device, self.targets):
            total, statistics = loss(batch)
            scaled = total / denominator
            if not math.isfinite(value := float(scaled.detach())):
                not_finite += [(value, samples[i].episode_id) for i in rows]
            self.updater.backward(scaled)
            tokens = {
                "loss": value,
                "tokens_trained": float(len(batch.targets)),
                "tokens_read": float(sum(len(samples[i].ids) for i in rows)),
                "tokens_padded": float(batch.ids.numel()),
                "micro_batches": 1.0,
            }
            if counts:
                add(sums, statistics | tokens)
        if losses := [loss_of for of_rank in self.ranks.gather(not_finite) for loss_of in of_rank]:
            self.updater.clear()
            names = ", ".join(name for _, name in losses[:3])
            raise TrainingError(f"the loss is {losses[0][0]} on {names}{', ...' if len(losses) > 3 else ''}")
        return self.ranks.sums(sums)
