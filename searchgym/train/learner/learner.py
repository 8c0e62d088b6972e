"""Interface between training loop and learner, and a learner that trains in this process; also memory metrics.

With DeepSpeed, each rank runs a `LocalLearner`, and the loop calls all of them through
`searchgym.train.distributed.remote.RemoteLearner`.
"""

from __future__ import annotations

import contextlib
import copy
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from searchgym.train.algorithms.samples import Sample, with_all_targets
from searchgym.train.learner.batching import Flat, Metrics, Ranks
from searchgym.train.learner.compiled import with_layers
from searchgym.train.learner.critic import Critic, load_critic, make_critic
from searchgym.train.learner.lora import WithoutAdapter, adapted, adapter_weights, merged
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.recipe import Recipe

CRITIC = "critic"
"""Name of the critic's folder in a checkpoint, and prefix of its metrics."""
SAME = {"tokens_read", "tokens_padded", "micro_batches"}
"""Metrics that are reported only for the policy, because the critic's are nearly equal."""


class Learner(Protocol):
    """Interface of a learner: updates the models of a recipe from training samples."""

    @property
    def version(self) -> int:
        """Number of updates of the policy so far."""
        ...

    def version_of(self, key: str) -> int:
        """Returns the number of updates of a model key so far. Default: `version`, for the single key."""
        return self.version

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Adds the inputs of advantages to samples: log-probs for KL in the reward, and the critic's values.

        Returns:
            Copies of the samples, in the same order.
        """
        ...

    def logp(self, samples: Sequence[Sample]) -> Flat:
        """Returns the log-probs of the samples' trained tokens under the current weights: (n,) float32 per sample."""
        ...

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates policy and critic from samples with advantages, or the policy from demonstrations.

        Args:
            samples: At least one.
            step: 0-based step of the run.

        Raises:
            TrainingError: A loss or gradient is not finite.
        """
        ...

    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the policy's weights by name.

        Args:
            adapter: If True, only the LoRA adapter's weights; if False, the whole model's, with any adapter merged.
        """
        ...

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the weights of a trained model key; see `weights`. Default: the weights of the single key."""
        return self.weights(adapter)

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
        """Ends the processes that the learner started. Default: it started none."""
        return


class LocalLearner(Learner):
    """Learner that trains in this process, alone or as one of several ranks.

    Args:
        recipe: Options of the training.
        model: The policy, trained in place. Also on resuming, pass the model of step 0, which is the KL term's
            reference.
        critic: The critic, trained in place. Default: built from the recipe if it has a critic.
        ranks: The processes that train together. Default: this process alone.
        updater: Builds the updater of a model from (model, optimizer options, steps).
        adapter: Folder of an adapter to continue training, whose base is `model`. Default: a new adapter.
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
            if critic is None and recipe.critic.model is not None:
                critic = load_critic(recipe.critic.model, recipe.critic.loss, recipe.learner.dtype, str(model.device))
            critic = with_layers(critic or make_critic(model, recipe.critic.loss), recipe.learner)
            valuing = updater(critic, recipe.critic.optimizer, recipe.steps)
            self.critic = Critic(valuing, recipe.critic, recipe.seed, self.ranks)
        adapted(model, recipe.lora, recipe.seed, recipe.learner.frozen_layers, adapter)
        loss = recipe.loss
        reference: PreTrainedModel | WithoutAdapter | None = None
        if loss.kl_coef and (adapter is not None or not recipe.lora.rank):
            reference = copy.deepcopy(model).requires_grad_(False)
        policy = updater(with_layers(model, recipe.learner), recipe.optimizer, recipe.steps)
        if loss.kl_coef and reference is None:
            reference = WithoutAdapter(model, policy)
        self.policy = Policy(
            policy,
            loss,
            recipe.optimizer,
            seed=recipe.seed,
            temperature=recipe.rollout.temperature,
            reference=reference,
            ranks=self.ranks,
        )

    @property
    @override
    def version(self) -> int:
        return self.policy.updater.version

    @override
    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        prepared, loss = list(samples), self.recipe.loss
        if prepared and loss.kl_coef and loss.kl_in == "reward":
            prepared = self.policy.with_logp(prepared)
        return self.critic.with_values(prepared) if prepared and self.critic is not None else prepared

    @override
    def logp(self, samples: Sequence[Sample]) -> Flat:
        return self.policy.logp(samples)

    @override
    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the models by the recipe's method; only the critic during its warm-up."""
        reset_peak()
        recipe, metrics = self.recipe, Metrics(updates=0.0)
        if not recipe.method.compares:
            every_token = recipe.method.every_token
            samples = [with_all_targets(sample) for sample in samples] if every_token else samples
            metrics = self.policy.supervised_step(samples, step, recipe.method.dropped(step, recipe.steps))
        elif self.critic is None or step >= recipe.critic.warmup_steps:
            metrics = self.policy.policy_step(samples, step)
        if self.critic is not None:
            of_critic = self.critic.value_step(samples, step)
            metrics |= {f"{CRITIC}/{name}": value for name, value in of_critic.items() if name not in SAME}
        if uses_gpu() and recipe.rollout.sampler.frees_gpu:
            torch.cuda.empty_cache()  # the sampler needs the memory next
        return metrics | {"memory/learn": max(self.ranks.gather(peak_gib()))}

    @override
    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        state = self.policy.updater.weights()
        if not self.recipe.lora.rank or self.ranks.rank:
            return state
        return adapter_weights(state) if adapter else merged(state, self.recipe.lora)

    @override
    def save(self, folder: Path) -> None:
        self.policy.updater.check_weights()
        self.policy.updater.save(folder)
        if self.critic is not None:
            self.critic.updater.check_weights()
            (folder / CRITIC).mkdir(exist_ok=True)
            self.critic.updater.save(folder / CRITIC)

    @override
    def load(self, folder: Path) -> None:
        self.policy.updater.load(folder)
        if self.critic is not None:
            self.critic.updater.load(folder / CRITIC)


# -- memory of this process -------------------------------------------------------------------------------------------


def uses_gpu() -> bool:
    """Returns True if this process uses a GPU; other processes may use GPUs that this one does not."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def reset_peak() -> None:
    """Resets the peak-memory counter (Linux, CUDA)."""
    if uses_gpu():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_gib() -> float:
    """Returns the peak memory since `reset_peak`, in GiB.

    It is the peak of GPU allocations (of the GPU with the largest peak) if this process uses a GPU, else of the
    process's resident memory, since its start if the system cannot reset the counter.
    """
    if uses_gpu():
        return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())) / 2**30
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**30 if sys.platform == "darwin" else most / 2**20
