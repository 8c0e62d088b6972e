"""The policy under training: log-probs of its tokens, clipped policy loss, and maximum likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import policy_sums
from searchgym.train.algorithms.predictable import without_predictable
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import Flat, Metrics, MicroBatch, Ranks, spread
from searchgym.train.learner.head import Scores
from searchgym.train.learner.trained_model import TrainedModel, Updater
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Policy:
    """A language model that is updated from samples, by the clipped policy loss or by maximum likelihood.

    Args:
        updater: Updater of the model, with its optimizer.
        loss: Clips, coefficients and reduction of the loss.
        options: How a step is split, and the number type of matrix products.
        seed: Seed of the shuffles.
        temperature: Temperature of the sampler.
        reference: Frozen model of the KL term; needed if `LossOptions.kl_coef` is above 0.
        ranks: Processes that share the work. Default: only this process.
    """

    def __init__(
        self,
        updater: Updater,
        loss: LossOptions,
        options: OptimizerOptions,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: Any = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.updater, self.trained_model = updater, TrainedModel(updater, options, seed, ranks)
        self.loss, self._several = loss, options.several
        self.temperature, self.reference = temperature, reference

    def policy_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the model by the clipped policy loss.

        Args:
            samples: Samples with advantages, at least one.
            step: 0-based step of the run, for the learning rate and the shuffles.

        Returns:
            Means over trained tokens, and the metrics of the updates.

        Raises:
            TrainingError: See `TrainedModel.update`.
        """
        values: dict[str, Flat] = {
            "advantage": [s.advantage[s.mask] for s in samples],
            "sampler_logp": [s.sampler_logp[s.mask] for s in samples],
        }
        if self._several:
            values["old_logp"] = _stored(samples, "old_logp") or self.logp(samples)
        if self.reference is not None:
            values["ref_logp"] = _stored(samples, "ref_logp") or self.logp(samples, self.reference)
        reduction, length = self.loss.reduction, self.loss.constant_length
        return self.trained_model.update(samples, values, step, self.policy_loss, reduction, length)

    def supervised_step(self, samples: Sequence[Sample], step: int, dropped: float = 0.0) -> Metrics:
        """Updates the model by maximum likelihood of the tokens in the samples' masks; see `policy_step`.

        Args:
            samples: Samples, at least one with a target.
            step: 0-based step of the run.
            dropped: Share of predictable tokens to leave out; see `without_predictable`.
        """
        if dropped:
            entropies = self.trained_model.per_token(samples, lambda batch: self._forward(batch).entropy)
            samples = without_predictable(samples, entropies, dropped)
        reduction, length = self.loss.reduction, self.loss.constant_length
        return self.trained_model.update(samples, {}, step, self.supervised_loss, reduction, length)

    def with_logp(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with `old_logp` and, if there is a reference, `ref_logp`, for KL in the reward."""
        old = spread(samples, self.logp(samples))
        with_old = [dataclasses.replace(sample, old_logp=logp) for sample, logp in zip(samples, old, strict=True)]
        if self.reference is None:
            return with_old
        reference = spread(samples, self.logp(samples, self.reference))
        return [dataclasses.replace(sample, ref_logp=logp) for sample, logp in zip(with_old, reference, strict=True)]

    def logp(self, samples: Sequence[Sample], model: PreTrainedModel | None = None) -> Flat:
        """Computes log-probs of the trained tokens under the current weights, or under another model.

        Returns:
            One (n,) float32 array per sample.
        """
        return self.trained_model.per_token(samples, lambda batch: self._forward(batch, model).logp)

    def _forward(self, batch: MicroBatch, other: PreTrainedModel | None = None) -> Scores:
        """Returns log-probs and entropies of the trained tokens."""
        return self.trained_model.scores(batch, self.temperature, self.loss.entropy_coef > 0, other)

    def policy_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed policy loss of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch)
        values = batch.values
        old = values.get("old_logp", logp.detach())
        total, statistics = policy_sums(
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
        return total, statistics | {
            "sampler_difference": float(difference.sum()),
            "max_sampler_difference": float(difference.max()) if len(difference) else 0.0,
        }

    def supervised_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed negative log-likelihood of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch)
        loss = -(batch.values["weight"] * logp).sum()
        return loss, {"nll": -float(logp.detach().sum()), "entropy": float(entropy.detach().sum())}


def _stored(samples: Sequence[Sample], name: str) -> Flat | None:
    """Returns an attribute's values at trained tokens; None unless every sample has the attribute set."""
    stored = [(getattr(s, name), s.mask) for s in samples]
    return None if any(values is None for values, _ in stored) else [values[mask] for values, mask in stored]
