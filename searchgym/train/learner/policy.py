"""The policy under training: log-probs of what it wrote, the clipped policy loss, maximum likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from searchgym.train.algorithms.losses import policy_sums, token_logp
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import MicroBatch, trained_logits
from searchgym.train.learner.ranks import Ranks
from searchgym.train.learner.trained_model import Flat, Metrics, TrainedModel
from searchgym.train.learner.updater import Updater
from searchgym.train.recipe.options import LossOptions, OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Policy(TrainedModel):
    """Updates a language model from samples.

    Args:
        updater: Holds the model and its optimizer.
        loss: Clips, coefficients, reduction.
        options: How a step is cut; type of the matrix products.
        seed: Of the shuffles.
        temperature: The sampler's.
        reference: Frozen model of the KL term; needed if `LossOptions.kl_coef` is above 0.
        ranks: Who takes part.
    """

    def __init__(
        self,
        updater: Updater,
        loss: LossOptions,
        options: OptimizerOptions,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: PreTrainedModel | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(updater, options, seed, ranks or Ranks())
        self.loss, self.temperature, self.reference = loss, temperature, reference

    def policy_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the model by the clipped policy loss.

        Args:
            samples: With advantages; at least one.
            step: 0-based step of the run, for the learning rate and the shuffles.

        Returns:
            Means over trained tokens, and what the updates did.

        Raises:
            TrainingError: See `TrainedModel.update`.
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
        loss = self.loss
        return self.update(samples, values, step, self.policy_loss, loss.reduction, loss.constant_length)

    def supervised_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the model by maximum likelihood of the tokens in the samples' masks; see `policy_step`."""
        loss = self.loss
        return self.update(samples, {}, step, self.supervised_loss, loss.reduction, loss.constant_length)

    def with_logp(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with `old_logp`, and `ref_logp` if there is a reference: for KL in the reward."""
        made = [
            dataclasses.replace(sample, old_logp=own)
            for sample, own in zip(samples, self.spread(samples, self.logp(samples)), strict=True)
        ]
        if self.reference is None:
            return made
        reference = self.spread(samples, self.logp(samples, self.reference))
        return [dataclasses.replace(sample, ref_logp=own) for sample, own in zip(made, reference, strict=True)]

    def logp(self, samples: Sequence[Sample], model: PreTrainedModel | None = None) -> Flat:
        """Computes log-probs of trained tokens under the present weights, or under another model's.

        Returns:
            One (n,) float32 array per sample.
        """
        return self.per_token(samples, lambda batch: self._forward(batch, model)[0])

    def _forward(self, batch: MicroBatch, other: PreTrainedModel | None = None) -> tuple[Tensor, Tensor]:
        """Returns (N,) log-probs and (N,) entropies of the trained tokens."""
        run: Callable[..., Any] = other or self.updater
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.options.autocast == "bfloat16"):
            logits = trained_logits(other or self.model, batch, run)
        return token_logp(logits, batch.targets, self.temperature, self.loss.entropy_coef > 0)

    def policy_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed policy loss of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch)
        values: Mapping[str, Tensor] = batch.values
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

    def supervised_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed negative log-likelihood of a micro-batch and its statistics."""
        logp, entropy = self._forward(batch)
        loss = -(batch.values["weight"] * logp).sum()
        return loss, {"nll": -float(logp.detach().sum()), "entropy": float(entropy.detach().sum())}


def _known(samples: Sequence[Sample], name: str) -> Flat | None:
    """Returns what was computed ahead for every sample, or None."""
    found = [(getattr(s, name), s.mask) for s in samples]
    return None if any(values is None for values, _ in found) else [values[mask] for values, mask in found]
