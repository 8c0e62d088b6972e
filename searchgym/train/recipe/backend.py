"""Interface of learner backends, one class each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from annotated_types import Ge, Interval

from searchgym.options import Kind, Options, Setting

KEEP_FLOAT32: Final = "keep float32 and set optimizer.autocast to bfloat16"
"""Advice where weights in bfloat16 would lose small updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(Options):
    """Distribution of a training over processes and devices."""

    ranks: Annotated[int, Ge(1)] = 1
    """Number of processes; on a GPU machine, one per GPU."""
    gpus: list[int] | None = None
    """GPU number of each rank. Default: 0, 1, 2 and so on."""
    zero: Annotated[int, Interval(ge=0, le=3)] = 0
    """ZeRO stage: 0 shards nothing over the ranks, 1 the optimizer state, 2 gradients too, 3 weights too."""
    offload_optimizer: bool = False
    """If true, the optimizer state is kept in main memory; needs ZeRO 1 or higher."""
    offload_parameters: bool = False
    """If true, the weights are kept in main memory; needs ZeRO 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerBackend(Kind):
    """Base class of training engines: one subclass each, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.recipe.backends"
    noun: ClassVar = "learner backend"
    back_end: ClassVar[str]
    """Module of the learner; imported when the training starts."""
    apart: ClassVar[bool] = False
    """True if it trains in separate processes, which a launcher may start on other machines."""
    trains_adapters: ClassVar[bool] = False
    """True if it trains LoRA adapters."""

    @property
    def sharding(self) -> Sharding:
        """Distribution over processes and devices. Default: one process on the first GPU."""
        return Sharding()

    def fitted(self, gpus: int) -> dict[str, Any]:
        """Returns the options to change so that it runs on this number of GPUs, if it needs more. Default: none."""
        return {}

    def lighter(self, gpus: int) -> Iterable[dict[str, Any]]:
        """Yields alternatives that need less GPU memory, each as recipe values by dotted key. Default: none."""
        return ()

    def joined_at(self, address: str) -> LearnerBackend:
        """Returns these options with an address, HOST:PORT, at which to wait for ranks that a launcher started."""
        raise NotImplementedError(f"{type(self).__name__} has no ranks")

    def learner(self, recipe: Any, loaded: Any, logs: Path) -> Any:
        """Returns the learner of a model key.

        Args:
            recipe: The recipe of the key.
            loaded: Model of the key, which the learner may change, and the adapter to continue training, if any.
            logs: Folder for the logs of the learner's processes.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no learner")

    def module(self) -> Any:
        """Imports the module with the learner."""
        return importlib.import_module(self.back_end)


def adapter_problems(setting: Setting) -> Iterable[str]:
    """Yields why adapters beside weights in bfloat16 cannot be trained in a setting, whatever the backend."""
    if setting.dtype == "bfloat16" and setting.lora and setting.rounds_adapters:
        yield (
            "learner.dtype bfloat16 with lora needs rollout.sampler vllm: transformers samples from the adapter "
            f"merged into the rounded weights, in which small updates are lost; {KEEP_FLOAT32}"
        )
