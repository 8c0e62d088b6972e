"""The critic of PPO: a value for each token that is learnt from, trained towards the returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from searchgym.rollout.loading import Dtype, load_model
from searchgym.train.algorithms.losses import value_sums
from searchgym.train.algorithms.samples import VALUED, Sample
from searchgym.train.learner.batching import MicroBatch, trained_logits
from searchgym.train.learner.ranks import Ranks
from searchgym.train.learner.trained_model import Metrics, TrainedModel
from searchgym.train.learner.updater import Updater
from searchgym.train.recipe.options import CriticOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Critic(TrainedModel):
    """Estimates, before each token, the return that is still to come.

    The value of a token is read where its logits would be: at the token before it, which is the state in which it was
    chosen.

    Args:
        updater: Holds a token classifier of one label and its optimizer.
        options: Clip, optimizer, tokens.
        seed: Of the shuffles.
        ranks: Who takes part.
    """

    def __init__(self, updater: Updater, options: CriticOptions, seed: int, ranks: Ranks | None = None) -> None:
        super().__init__(updater, options.optimizer, seed, ranks or Ranks(), VALUED[options.tokens])
        self.critic = options

    def with_values(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with `value` under the present weights."""
        values = self.spread(samples, self.per_token(samples, self._forward))
        return [dataclasses.replace(sample, value=own) for sample, own in zip(samples, values, strict=True)]

    def value_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the critic towards the samples' returns.

        Args:
            samples: With `value` and `returns`.
            step: 0-based step of the run.

        Returns:
            Means over targets, ``explained_variance`` of the returns by the values before the update, and what the
            updates did.
        """
        old, returns = [], []
        for sample in samples:
            assert sample.value is not None and sample.returns is not None
            places = self.targets(sample)
            old.append(sample.value[places])
            returns.append(sample.returns[places])
        metrics = self.update(samples, {"old_value": old, "return": returns}, step, self.value_loss)
        return metrics | {"explained_variance": explained_variance(np.concatenate(old), np.concatenate(returns))}

    def _forward(self, batch: MicroBatch) -> Tensor:
        """Returns (N,) values in float32."""
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.options.autocast == "bfloat16"):
            return trained_logits(self.model, batch, self.updater)[:, 0].float()

    def value_loss(self, batch: MicroBatch) -> tuple[Tensor, Metrics]:
        """Returns the summed value loss of a micro-batch and its statistics."""
        values = batch.values
        return value_sums(
            self._forward(batch), values["old_value"], values["return"], values["weight"], self.critic.value_clip
        )


def explained_variance(values: Any, returns: Any) -> float:
    """Computes ``1 - var(returns - values) / var(returns)``: 1 is a perfect critic, 0 one that knows the mean only.

    Args:
        values: (N,) estimates.
        returns: (N,) what they should have been.

    Returns:
        0 where all returns are equal.
    """
    variance = float(np.var(returns.astype(np.float64)))
    return 1.0 - float(np.var(returns.astype(np.float64) - values)) / variance if variance else 0.0


def load_critic(path: str, dtype: Dtype, device: str = "cpu") -> PreTrainedModel:
    """Returns a critic with the body of a language model on disk; see `make_critic`.

    Raises:
        UsageError: See `load_model`.
        DataError: See `load_model`.
    """
    model, _ = load_model(path, dtype, device=device)
    return make_critic(model)


def make_critic(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a critic with the body of a language model and a head whose values are all 0."""
    from transformers import AutoModelForTokenClassification

    settings = {name: value for name, value in model.config.to_dict().items() if name not in ("id2label", "label2id")}
    config = type(model.config).from_dict(settings | {"num_labels": 1, "classifier_dropout": 0.0})
    with torch.random.fork_rng(devices=[]):
        made: Any = AutoModelForTokenClassification.from_config(config, dtype=model.dtype)  # type: ignore[no-untyped-call]
    made.base_model.load_state_dict(model.base_model.state_dict())
    with torch.no_grad():
        for parameter in made.score.parameters():
            parameter.zero_()
    critic: PreTrainedModel = made.to(model.device)
    return critic
