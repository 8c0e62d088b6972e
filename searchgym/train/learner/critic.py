"""The critic of PPO, which estimates a value for each token and is trained on the returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import Dtype
from searchgym.train.algorithms.samples import VALUED, Sample
from searchgym.train.algorithms.value_loss import ValueLoss
from searchgym.train.learner.batching import Metrics, MicroBatch, Ranks, spread
from searchgym.train.learner.trained_model import TrainedModel, Updater
from searchgym.train.recipe.options import CriticOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Critic:
    """A value model that estimates the future return before each token.

    A token's value is computed at the position of its logits, the preceding token, which is the state in which the
    token was chosen.

    Args:
        updater: Updater of a token classifier with as many labels as the loss has outputs.
        options: Loss, clip, optimizer, and the tokens that have a value.
        seed: Seed of the shuffles.
        ranks: Processes that share the work. Default: only this process.
    """

    def __init__(self, updater: Updater, options: CriticOptions, seed: int, ranks: Ranks | None = None) -> None:
        self.updater, self.options = updater, options
        self.trained_model = TrainedModel(updater, options.optimizer, seed, ranks, VALUED[options.tokens])

    def with_values(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with `value` computed under the current weights."""
        values = spread(samples, self.trained_model.per_token(samples, self._values), self.trained_model.targets)
        return [dataclasses.replace(sample, value=value) for sample, value in zip(samples, values, strict=True)]

    def value_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the critic towards the samples' returns.

        Args:
            samples: Samples with `value` and `returns`, at least one.
            step: 0-based step of the run.

        Returns:
            Means over targets, ``explained_variance`` of the returns by the values before the update, and the metrics
            of the updates.
        """
        old, returns = [], []
        for sample in samples:
            assert sample.value is not None and sample.returns is not None
            positions = self.trained_model.targets(sample)
            old.append(sample.value[positions])
            returns.append(sample.returns[positions])
        flat = {"old_value": old, "return": returns}
        metrics = self.trained_model.update(samples, flat, step, self.value_loss)
        return metrics | {"explained_variance": explained_variance(np.concatenate(old), np.concatenate(returns))}

    def _values(self, batch: MicroBatch) -> Tensor:
        """Returns (N,) values in float32."""
        return self.options.loss.values(self.trained_model.logits(batch))

    def value_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed value loss of a micro-batch and its statistics."""
        loss, values = self.options.loss, batch.values
        outputs, clip = self.trained_model.logits(batch), self.options.value_clip if self.options.loss.clips else None
        return loss.sums(outputs, values["old_value"], values["return"], values["weight"], clip)


def explained_variance(values: Any, returns: Any) -> float:
    """Computes ``1 - var(returns - values) / var(returns)``: 1 for a perfect critic, 0 for the mean as prediction.

    Args:
        values: (N,) estimates of the returns.
        returns: (N,) observed returns.

    Returns:
        The explained variance; 0 if all returns are equal.
    """
    variance = float(np.var(returns.astype(np.float64)))
    return 1.0 - float(np.var(returns.astype(np.float64) - values)) / variance if variance else 0.0


def load_critic(path: str, loss: ValueLoss, dtype: Dtype, device: str = "cpu") -> PreTrainedModel:
    """Returns a critic with the body of a language model on disk; see `make_critic` and, for errors, `load_model`."""
    return make_critic(load_model(path, dtype, device=device)[0], loss)


def make_critic(model: PreTrainedModel, loss: ValueLoss) -> PreTrainedModel:
    """Returns a critic with the body of a language model and a head whose outputs are `ValueLoss.start`.

    A head without a bias starts with outputs of 0.
    """
    from transformers import AutoModelForTokenClassification

    settings = {name: value for name, value in model.config.to_dict().items() if name not in ("id2label", "label2id")}
    config = type(model.config).from_dict(settings | {"num_labels": loss.outputs(), "classifier_dropout": 0.0})
    with torch.random.fork_rng(devices=[]):
        classifier: Any = AutoModelForTokenClassification.from_config(config, dtype=model.dtype)  # type: ignore[no-untyped-call]
    classifier.base_model.load_state_dict(model.base_model.state_dict())
    with torch.no_grad():
        for parameter in classifier.score.parameters():
            parameter.zero_()
        if getattr(classifier.score, "bias", None) is not None:
            classifier.score.bias.copy_(torch.tensor(loss.start()))
    critic: PreTrainedModel = classifier.to(model.device)
    return critic
