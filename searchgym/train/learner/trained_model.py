"""A model under training: forward passes over samples, and updates split into micro-batches.

A step splits its samples into minibatches (one update each), and every minibatch into micro-batches (one forward and
one backward pass each, gradients summed), which the ranks share. A loss is a sum divided by the update's single
denominator, so neither split changes anything but rounding.

Dropout stays off: it would make the ratio of an unchanged model differ from 1. No random number comes from a global
generator; minibatches are shuffled by a generator seeded with (seed, step).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.errors import TrainingError, UsageError
from searchgym.rollout.transformers.precision import head_of, mixed_precision
from searchgym.train.algorithms.loss_options import Reduction
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.samples import Sample, Targets, model_targets
from searchgym.train.learner.batching import MicroBatch, Ranks, add, collate, pack, shares, trained_logits
from searchgym.train.learner.updater import Updater
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Metrics = dict[str, float]
Flat = Sequence[npt.NDArray[np.float32]]
"""A number for each target of each sample: one (n,) array per sample with n targets."""
TOTALS: Final = ("tokens_trained", "tokens_read", "tokens_padded", "micro_batches")
"""Metrics of a step that are sums, not means."""
Loss = Callable[[MicroBatch], tuple[Tensor, Metrics]]
"""A function of a micro-batch that returns the summed loss, not yet divided, and sums for the metrics."""


class TrainedModel:
    """Runs one model over samples and updates it by the loss that its user hands in.

    Args:
        updater: Holds the model and its optimizer.
        options: How a step is split, and the number type of matrix products.
        seed: Seed of the shuffles.
        ranks: Processes that share the work. Default: this one alone.
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
        updater.model.train(updater.model.is_gradient_checkpointing)  # it is done in training mode only
        self.updater, self.options, self.seed = updater, options, seed
        self._head = head_of(updater.model)
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

    def per_token(self, samples: Sequence[Sample], function: Callable[[MicroBatch], Tensor]) -> Flat:
        """Computes a number for each target, without gradients; every rank gets the numbers of all samples.

        Args:
            samples: At least one.
            function: Maps a micro-batch to (N,) numbers.

        Returns:
            One (n,) float32 array per sample.
        """
        computed: dict[int, npt.NDArray[np.float32]] = {}
        with torch.no_grad():
            for rows, batch, counts in self._micro_batches(samples, {}):
                numbers = function(batch).float().cpu().numpy()
                ends = np.cumsum([len(self.targets(samples[i])) for i in rows])
                if counts:
                    computed |= zip(rows, np.split(numbers, ends[:-1]), strict=True)
        by_sample = {i: numbers for of_rank in self.ranks.gather(computed) for i, numbers in of_rank.items()}
        return [by_sample[i] for i in range(len(samples))]

    def spread(self, samples: Sequence[Sample], numbers: Flat) -> Flat:
        """Expands per-target values to one (T,) float32 array per sample, with 0 at tokens that are not targets."""
        rows = []
        for sample, of_targets in zip(samples, numbers, strict=True):
            row = np.zeros(len(sample.ids), np.float32)
            row[self.targets(sample)] = of_targets
            rows.append(row)
        return rows

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
            samples: At least one with a target.
            values: Numbers per target, by name.
            step: 0-based step of the run, for the learning rate and the shuffles.
            loss: Loss of a micro-batch.
            reduction: See `token_weights`.
            constant_length: See `token_weights`.

        Returns:
            Means over targets, and the figures of the updates.

        Raises:
            TrainingError: A loss or gradient is not finite; the weights stay at the last update.
            UsageError: No sample has a target.
        """
        if not any(len(self.targets(sample)) for sample in samples):
            raise UsageError(f"{len(samples)} samples hold no token to train on: leave the step out")
        sums: Metrics = {}
        updates: list[Metrics] = []
        for indices in self._minibatches(len(samples), step):
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

    def _minibatches(self, count: int, step: int) -> Iterator[npt.NDArray[np.intp]]:
        """Yields the indices of each minibatch: samples are shuffled in each epoch and cut near-equally."""
        rng = np.random.default_rng([self.seed, step])
        for _ in range(self.options.epochs):
            updates = updates_of_pass(self.options, count)
            order = rng.permutation(count) if updates > 1 else np.arange(count)
            yield from np.array_split(order, updates)

    def accumulate(
        self, samples: Sequence[Sample], values: Mapping[str, Flat], denominator: float, loss: Loss
    ) -> Metrics:
        """Adds the gradients of an update to the model; each rank does its share.

        Args:
            samples: Samples of the whole update.
            values: Numbers per target, by name, including ``"weight"``.
            denominator: Divisor of the whole update's loss; see `token_weights`.
            loss: Loss of a micro-batch.

        Returns:
            Sums over targets; ``"loss"`` is already divided by the denominator.

        Raises:
            TrainingError: A loss is not finite.
        """
        sums: Metrics = {}
        not_finite: list[tuple[float, str]] = []
        for rows, batch, counts in self._micro_batches(samples, values):
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

    def _micro_batches(
        self, samples: Sequence[Sample], values: Mapping[str, Flat]
    ) -> Iterator[tuple[list[int], MicroBatch, bool]]:
        """Yields (sample indices, tensors, whether they count) for this rank's micro-batches; see `shares`."""
        device = self.updater.model.device
        auto = self.options.packing == "auto" and device.type == "cuda"
        packed = auto or self.options.packing == "always"
        batches = pack([len(sample.ids) for sample in samples], self.options.micro_batch_tokens, packed)
        for rows, counts in shares(batches, self.ranks):
            batch = collate(samples, values, rows, device, self.targets, packed)
            if not counts and "weight" in batch.values:
                batch.values["weight"].zero_()
            yield rows, batch, counts


def updates_of_pass(options: OptimizerOptions, samples: int) -> int:
    """Returns the number of updates that a pass over some samples makes."""
    if options.minibatch_samples is None:
        return max(1, min(options.minibatches, samples))
    return -(-samples // options.minibatch_samples)


def recomputing(model: PreTrainedModel, on: bool) -> PreTrainedModel:
    """Switches gradient checkpointing of a model on, and its dropout off: checkpointing needs the training mode.

    The config that is saved with the model keeps its dropout.

    Args:
        model: Changed in place, and returned.
        on: If false, nothing is changed.

    Raises:
        UsageError: The model cannot recompute activations.
    """
    if not on:
        return model
    from transformers import PreTrainedConfig

    if not model.supports_gradient_checkpointing:
        raise UsageError(f"{type(model).__name__} cannot recompute activations: learner.gradient_checkpointing")
    quiet: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        for name, value in vars(module).items():  # nn.Dropout calls it "p"; attention and layers use names with "drop"
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        if module is model or not isinstance(config, PreTrainedConfig):
            continue
        if id(config) not in quiet:
            quiet[id(config)] = copy.deepcopy(config)
            for name, value in vars(config).items():  # some layers read the config at run time (Falcon)
                if isinstance(value, float) and "drop" in name:
                    setattr(quiet[id(config)], name, 0.0)
        vars(module)["config"] = quiet[id(config)]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model
