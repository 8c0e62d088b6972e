"""The learner: what the training loop asks for. Policy, critic and reference of a recipe, in this process.

Where a recipe asks for DeepSpeed, each of its ranks runs a `LocalLearner`, and the loop talks to all of them through
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
from searchgym.train.learner.lora import WithoutAdapter, adapter_weights, add_adapter, merged
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.ranks import Ranks
from searchgym.train.learner.trained_model import Flat, Metrics
from searchgym.train.learner.updater import Updater
from searchgym.train.memory import peak_gib, reset_peak, uses_gpu
from searchgym.train.recipe.recipe import Recipe

CRITIC = "critic"
"""Folder of the critic in a checkpoint, and before the names of its metrics."""
SAME = {"tokens_read", "tokens_padded", "micro_batches"}
"""Metrics that say the same of the critic as of the policy, or nearly."""


class Learner(Protocol):
    """Learns from samples."""

    @property
    def version(self) -> int:
        """Updates of the policy made so far."""
        ...

    def version_of(self, key: str) -> int:
        """Returns the updates of one of the model keys that are trained."""
        ...

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples with what their advantages are made of: log-probs for KL in the reward, values."""
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
        """Returns the policy's weights by name: the whole model's, an adapter merged in, or the adapter's alone."""
        ...

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the same of one of the model keys that are trained."""
        ...

    def save(self, folder: Path) -> None:
        """Writes models and optimizers to a folder that is there.

        Raises:
            TrainingError: A weight is not finite.
        """
        ...

    def load(self, folder: Path) -> None:
        """Takes over what `save` wrote."""
        ...

    def close(self) -> None:
        """Ends what the learner started."""
        ...


class LocalLearner:
    """A learner in this process, alone or as one of several ranks.

    Args:
        recipe: What to do.
        model: The policy, trained in place. On a resume too, give it as it was at step 0: the KL term refers to that.
        critic: Trained in place where the recipe has one; made as the recipe says if not given.
        ranks: Who takes part.
        updater: Makes the updater of a model.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: PreTrainedModel,
        critic: PreTrainedModel | None = None,
        ranks: Ranks | None = None,
        updater: type[Updater] | Any = Updater,
    ) -> None:
        self.recipe, self.ranks = recipe, ranks or Ranks()
        self.critic: Critic | None = None
        if recipe.has_critic:
            made = updater(_ready(critic or _critic(recipe, model), recipe), recipe.critic.optimizer, recipe.steps)
            self.critic = Critic(made, recipe.critic, recipe.seed, self.ranks)
        reference: Any = None
        if recipe.loss.kl_coef and not recipe.lora.rank:
            reference = copy.deepcopy(model).requires_grad_(False)
        if recipe.lora.rank:
            add_adapter(model, recipe.lora, recipe.seed)
        policy = updater(_ready(model, recipe), recipe.optimizer, recipe.steps)
        if recipe.loss.kl_coef and recipe.lora.rank:
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
        """See `Learner`: there is one."""
        return self.version

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """See `Learner`."""
        made = list(samples)
        if made and self.recipe.loss.kl_coef and self.recipe.loss.kl_in == "reward":
            made = self.policy.with_logp(made)
        return self.critic.with_values(made) if made and self.critic is not None else made

    def logp(self, samples: Sequence[Sample]) -> Flat:
        """See `Learner`."""
        return self.policy.logp(samples)

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """See `Learner`."""
        reset_peak()
        metrics = self._learn(samples, step)
        if self.recipe.rollout.vllm.sleep and uses_gpu():
            torch.cuda.empty_cache()  # the sampler is about to wake
        return metrics | {"memory/learn": max(self.ranks.gather(peak_gib()))}

    def _learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the models."""
        recipe = self.recipe
        if recipe.method != "policy":
            if recipe.supervised.targets == "all":
                samples = [with_all_targets(sample) for sample in samples]
            return self.policy.supervised_step(samples, step)
        metrics: Metrics = {"updates": 0.0}
        if self.critic is None or step >= recipe.critic.warmup_steps:
            metrics = self.policy.policy_step(samples, step)
        if self.critic is not None:
            own = self.critic.value_step(samples, step)
            metrics |= {f"{CRITIC}/{name}": value for name, value in own.items() if name not in SAME}
        return metrics

    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """See `Learner`."""
        state = self.policy.updater.weights()
        if not self.recipe.lora.rank or self.ranks.rank:
            return state
        return adapter_weights(state) if adapter else merged(state, self.recipe.lora)

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """See `Learner`: there is one."""
        return self.weights(adapter)

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        self.policy.updater.check_weights()
        self.policy.updater.save(folder)
        if self.critic is not None:
            self.critic.updater.check_weights()
            (folder / CRITIC).mkdir(exist_ok=True)
            self.critic.updater.save(folder / CRITIC)

    def load(self, folder: Path) -> None:
        """See `Learner`."""
        self.policy.updater.load(folder)
        if self.critic is not None:
            self.critic.updater.load(folder / CRITIC)

    def close(self) -> None:
        """See `Learner`."""


def _critic(recipe: Recipe, model: PreTrainedModel) -> PreTrainedModel:
    """Returns the critic of a recipe, on the policy's device: with the body of `critic.model`, or of the policy."""
    if recipe.critic.model is None:
        return make_critic(model)
    return load_critic(recipe.critic.model, recipe.learner.dtype, str(model.device))


def _ready(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """Returns the model, set to recompute its activations if the recipe asks for it."""
    if recipe.learner.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UsageError(f"{type(model).__name__} cannot recompute activations: learner.gradient_checkpointing")
        _switch_dropout_off(model)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _switch_dropout_off(model: PreTrainedModel) -> None:
    """Sets every dropout of a model that must be in training mode to 0; the config that is saved with it stays."""
    quiet: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        for name, value in vars(module).items():  # "p" is nn.Dropout's; attention and layers have their own
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        if module is model or not isinstance(config, PreTrainedConfig):
            continue
        if id(config) not in quiet:
            quiet[id(config)] = copy.deepcopy(config)
            for name, value in vars(config).items():  # some layers ask the config (Falcon)
                if isinstance(value, float) and "drop" in name:
                    setattr(quiet[id(config)], name, 0.0)
        vars(module)["config"] = quiet[id(config)]
