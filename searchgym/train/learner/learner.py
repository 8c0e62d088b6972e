"""The interface between training loop and learner, and a learner that trains in this process.

With DeepSpeed, each rank runs a `LocalLearner`, and the loop talks to all of them through
`searchgym.train.distributed.remote.RemoteLearner`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from searchgym.errors import UsageError
from searchgym.train.algorithms.samples import Sample, with_all_targets
from searchgym.train.learner.critic import Critic, load_critic, make_critic
from searchgym.train.learner.lora import (
    WithoutAdapter,
    adapter_weights,
    add_adapter,
    continue_adapter,
    freeze_lower,
    merged,
)
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.ranks import Ranks
from searchgym.train.learner.trained_model import Flat, Metrics
from searchgym.train.learner.updater import Updater
from searchgym.train.memory import peak_gib, reset_peak, uses_gpu
from searchgym.train.recipe.options import LearnerOptions
from searchgym.train.recipe.recipe import Recipe

CRITIC = "critic"
"""Name of the critic's folder in a checkpoint, and prefix of its metrics."""
SAME = {"tokens_read", "tokens_padded", "micro_batches"}
"""Metrics reported for the policy only, since the critic's are nearly the same."""


class Learner(Protocol):
    """Interface of a learner: updates the models of a recipe from training samples."""

    @property
    def version(self) -> int:
        """Updates of the policy made so far."""
        ...

    def version_of(self, key: str) -> int:
        """Returns the number of updates made to a trained model key."""
        ...

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Adds the inputs of advantages to samples: log-probs for KL in the reward, and the critic's values.

        Returns:
            Copies of the samples, in the same order.
        """
        ...

    def logp(self, samples: Sequence[Sample]) -> Flat:
        """Returns the log-probs of the samples' trained tokens under the present weights: (n,) float32 per sample."""
        ...

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates policy and critic from samples with advantages, or the policy from demonstrations.

        Args:
            samples: At least one.
            step: 0-based step of the run.

        Raises:
            TrainingError: A loss or gradient that is not finite.
        """
        ...

    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the policy's weights by name.

        Args:
            adapter: Returns the LoRA adapter's weights alone. Default: the whole model's, with any adapter merged in.
        """
        ...

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the weights of a trained model key; see `weights`."""
        ...

    def save(self, folder: Path) -> None:
        """Writes models and optimizers to an existing folder.

        Raises:
            TrainingError: A weight is not finite.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restores models and optimizers from a folder written by `save`."""
        ...

    def close(self) -> None:
        """Ends the processes that the learner started."""
        ...


class LocalLearner:
    """Learner that trains in this process, alone or as one of several ranks.

    Args:
        recipe: Options of the training.
        model: The policy, trained in place. On a resume, too, pass the model of step 0: the KL term refers to it.
        critic: The critic, trained in place. Default: built by the recipe, if the recipe has one.
        ranks: The processes that train together. Default: this process alone.
        updater: Builds the updater of a model from (model, optimizer options, steps).
        adapter: Folder of an adapter of `model` whose training goes on; `model` is its base. Default: a new adapter.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: PreTrainedModel,
        critic: PreTrainedModel | None = None,
        ranks: Ranks | None = None,
        updater: type[Updater] | Any = Updater,
        adapter: Path | None = None,
    ) -> None:
        self.recipe, self.ranks = recipe, ranks or Ranks()
        self.critic: Critic | None = None
        if recipe.has_critic:
            valuing = updater(
                _ready(critic or _critic(recipe, model), recipe.learner), recipe.critic.optimizer, recipe.steps
            )
            self.critic = Critic(valuing, recipe.critic, recipe.seed, self.ranks)
        reference: Any = None
        if recipe.lora.rank:
            add_adapter(model, recipe.lora, recipe.seed, recipe.learner.frozen_layers)
        else:
            freeze_lower(model, recipe.learner.frozen_layers)
        if adapter is not None:
            continue_adapter(model, adapter, recipe.lora)
        if recipe.loss.kl_coef and (adapter is not None or not recipe.lora.rank):
            reference = copy.deepcopy(model).requires_grad_(False)
        policy = updater(_ready(model, recipe.learner), recipe.optimizer, recipe.steps)
        if recipe.loss.kl_coef and reference is None:
            reference = WithoutAdapter(model, policy)
        self.policy = Policy(
            policy,
            recipe.loss,
            recipe.optimizer,
            seed=recipe.seed,
            temperature=recipe.rollout.temperature,
            reference=reference,
            ranks=self.ranks,
        )

    @property
    def version(self) -> int:
        """Updates of the policy made so far."""
        return self.policy.updater.version

    def version_of(self, key: str) -> int:
        """Returns `version` for any key: this learner trains a single model."""
        return self.version

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Adds log-probs and values to the samples where advantages need them; see `Learner.prepare`."""
        prepared = list(samples)
        if prepared and self.recipe.loss.kl_coef and self.recipe.loss.kl_in == "reward":
            prepared = self.policy.with_logp(prepared)
        return self.critic.with_values(prepared) if prepared and self.critic is not None else prepared

    def logp(self, samples: Sequence[Sample]) -> Flat:
        """Returns the log-probs of the trained tokens under the present weights; see `Learner.logp`."""
        return self.policy.logp(samples)

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates policy and critic from the samples; see `Learner.learn`."""
        reset_peak()
        metrics = self._learn(samples, step)
        if self.recipe.rollout.sampler.frees_gpu and uses_gpu():
            torch.cuda.empty_cache()  # the sampler wakes next and needs the memory
        return metrics | {"memory/learn": max(self.ranks.gather(peak_gib()))}

    def _learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the models by the recipe's method; the critic alone during its warm-up."""
        recipe = self.recipe
        if not recipe.method.compares:
            if recipe.method.every_token:
                samples = [with_all_targets(sample) for sample in samples]
            return self.policy.supervised_step(samples, step)
        metrics: Metrics = {"updates": 0.0}
        if self.critic is None or step >= recipe.critic.warmup_steps:
            metrics = self.policy.policy_step(samples, step)
        if self.critic is not None:
            of_critic = self.critic.value_step(samples, step)
            metrics |= {f"{CRITIC}/{name}": value for name, value in of_critic.items() if name not in SAME}
        return metrics

    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the policy's weights by name; see `Learner.weights`."""
        state = self.policy.updater.weights()
        if not self.recipe.lora.rank or self.ranks.rank:
            return state
        return adapter_weights(state) if adapter else merged(state, self.recipe.lora)

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns `weights` for any key: this learner trains a single model."""
        return self.weights(adapter)

    def save(self, folder: Path) -> None:
        """Writes models and optimizers to an existing folder; see `Learner.save`."""
        self.policy.updater.check_weights()
        self.policy.updater.save(folder)
        if self.critic is not None:
            self.critic.updater.check_weights()
            (folder / CRITIC).mkdir(exist_ok=True)
            self.critic.updater.save(folder / CRITIC)

    def load(self, folder: Path) -> None:
        """Restores models and optimizers from a folder written by `save`."""
        self.policy.updater.load(folder)
        if self.critic is not None:
            self.critic.updater.load(folder / CRITIC)

    def close(self) -> None:
        """Does nothing: this learner starts no process."""


def _critic(recipe: Recipe, model: PreTrainedModel) -> PreTrainedModel:
    """Builds the critic of a recipe on the policy's device, from `critic.model` or, without it, from the policy."""
    if recipe.critic.model is None:
        return make_critic(model)
    return load_critic(recipe.critic.model, recipe.learner.dtype, str(model.device))


def _ready(model: PreTrainedModel, options: LearnerOptions) -> PreTrainedModel:
    """Returns the model, with gradient checkpointing on and dropout off if the options ask for checkpointing."""
    if options.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UsageError(f"{type(model).__name__} cannot recompute activations: learner.gradient_checkpointing")
        _switch_dropout_off(model)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _switch_dropout_off(model: PreTrainedModel) -> None:
    """Sets every dropout of a model to 0 without changing the config that is saved with it.

    Gradient checkpointing needs the training mode, in which dropout would be active.
    """
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
