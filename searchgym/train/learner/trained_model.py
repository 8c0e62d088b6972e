"""A model under training: forward passes over samples, and updates cut into micro-batches.

A step cuts its samples into minibatches (one update each), and each of those into micro-batches (one forward and
backward each, gradients added up), which the ranks share. Losses are sums divided by the update's one denominator, so
neither cut changes anything but rounding.

Dropout stays off: it would make the ratio of an unchanged model differ from 1. Nothing here draws from a global
generator; minibatches are shuffled by one seeded with (seed, step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.errors import TrainingError, UsageError
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.samples import Sample, Targets, model_targets
from searchgym.train.learner.batching import MicroBatch, collate, pack
from searchgym.train.learner.ranks import Ranks, add, shares
from searchgym.train.learner.updater import Updater
from searchgym.train.recipe.options import OptimizerOptions, Reduction

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Metrics = dict[str, float]
Flat = Sequence[npt.NDArray[np.float32]]
"""One (n,) array per sample: a number for each of its n targets."""
Loss = Callable[[MicroBatch], tuple[Tensor, Metrics]]
"""Returns a micro-batch's summed loss, not yet divided, and sums for the metrics."""


class TrainedModel:
    """Runs one model over samples and updates it.

    Args:
        updater: Holds the model and its optimizer.
        options: How a step is cut.
        seed: Of the shuffles.
        ranks: Who takes part.
        targets: Which tokens of a sample are learnt from: the model's own ones if not given.
    """

    def __init__(
        self, updater: Updater, options: OptimizerOptions, seed: int, ranks: Ranks, targets: Targets = model_targets
    ) -> None:
        updater.model.train(updater.model.is_gradient_checkpointing)  # it is done in training mode only
        self.updater, self.options, self.seed, self.ranks, self.targets = updater, options, seed, ranks, targets

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self.updater.model

    @property
    def version(self) -> int:
        """Updates made so far."""
        return self.updater.version

    def per_token(self, samples: Sequence[Sample], function: Callable[[MicroBatch], Tensor]) -> Flat:
        """Computes a number for each target, without gradients; every rank gets all of them.

        Args:
            samples: At least one.
            function: Of a micro-batch, (N,).

        Returns:
            One (n,) float32 array per sample.
        """
        own: dict[int, npt.NDArray[np.float32]] = {}
        with torch.no_grad():
            for rows, batch, counts in self._micro_batches(samples, {}):
                numbers = function(batch).float().cpu().numpy()
                ends = np.cumsum([len(self.targets(samples[i])) for i in rows])
                if counts:
                    own |= zip(rows, np.split(numbers, ends[:-1]), strict=True)
        found = {i: numbers for part in self.ranks.gather(own) for i, numbers in part.items()}
        return [found[i] for i in range(len(samples))]

    def spread(self, samples: Sequence[Sample], numbers: Flat) -> Flat:
        """Returns numbers of targets as one (T,) float32 array per sample, 0 elsewhere."""
        made = []
        for sample, own in zip(samples, numbers, strict=True):
            places = np.zeros(len(sample.ids), np.float32)
            places[self.targets(sample)] = own
            made.append(places)
        return made

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
            values: Numbers per target.
            step: 0-based step of the run, for the learning rate and the shuffles.
            loss: Of a micro-batch.
            reduction: See `token_weights`.
            constant_length: See `token_weights`.

        Returns:
            Means over targets, and what the updates did.

        Raises:
            TrainingError: A loss or gradient that is not finite; the weights are those of the last update.
        """
        if not any(len(self.targets(sample)) for sample in samples):
            raise UsageError(f"{len(samples)} samples hold no token to train on: leave the step out")
        sums: Metrics = {}
        updates: list[Metrics] = []
        for indices in self._minibatches(len(samples), step):
            part = [samples[i] for i in indices]
            weights, denominator = token_weights(part, reduction, constant_length, self.targets)
            if not denominator:
                continue
            own = {name: [flat[i] for i in indices] for name, flat in values.items()} | {"weight": weights}
            add(sums, self.accumulate(part, own, denominator, loss))
            updates.append(self.updater.apply(step))
        return _means(sums, updates)

    def accumulate(
        self, samples: Sequence[Sample], values: Mapping[str, Flat], denominator: float, loss: Loss
    ) -> Metrics:
        """Adds the gradients of an update to the model: each rank does its share.

        Args:
            samples: Of the whole update.
            values: Numbers per target, ``"weight"`` among them.
            denominator: Of the whole update; see `token_weights`.
            loss: Of a micro-batch.

        Returns:
            Sums over targets; ``"loss"`` is divided by the denominator already.

        Raises:
            TrainingError: A loss that is not finite.
        """
        sums: Metrics = {}
        bad: list[tuple[float, str]] = []
        for rows, batch, counts in self._micro_batches(samples, values):
            total, statistics = loss(batch)
            scaled = total / denominator
            if not math.isfinite(value := float(scaled.detach())):
                bad += [(value, samples[i].episode_id) for i in rows]
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
        if found := [one for part in self.ranks.gather(bad) for one in part]:
            self.updater.clear()
            names = ", ".join(name for _, name in found[:3])
            raise TrainingError(f"the loss is {found[0][0]} on {names}{', ...' if len(found) > 3 else ''}")
        return self.ranks.sums(sums)

    def _minibatches(self, count: int, step: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the indices of each update's samples: shuffled anew in each epoch, near-equal in number."""
        rng = np.random.default_rng([self.seed, step])
        for _ in range(self.options.epochs):
            order = rng.permutation(count) if self.options.minibatches > 1 else np.arange(count)
            yield from (part for part in np.array_split(order, self.options.minibatches) if len(part))

    def _micro_batches(
        self, samples: Sequence[Sample], values: Mapping[str, Flat]
    ) -> Iterator[tuple[list[int], MicroBatch, bool]]:
        """Yields (indices of samples, tensors, whether they count) of this rank; see `shares`."""
        auto = self.options.packing == "auto" and self.model.device.type == "cuda"
        packed = auto or self.options.packing == "always"
        batches = pack([len(sample.ids) for sample in samples], self.options.micro_batch_tokens, packed)
        for rows, counts in shares(batches, self.ranks):
            batch = collate(samples, values, rows, self.model.device, self.targets, packed)
            if not counts and "weight" in batch.values:
                batch.values["weight"].zero_()
            yield rows, batch, counts


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
