"""Interface of learner backends, one class each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Interval

from searchgym.options import Kind, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(Options):
    """What is spread over processes and devices, as the plan of memory counts it."""

    ranks: Annotated[int, Ge(1)] = 1
    """Number of processes; on a GPU machine one per GPU."""
    gpus: list[int] | None = None
    """GPU numbers of the ranks, in order. Default: counted from 0."""
    zero: Annotated[int, Interval(ge=0, le=3)] = 0
    """ZeRO stage, which sets what is sharded over the ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, 3
    weights too."""
    offload_optimizer: bool = False
    """ZeRO 1 and higher: keep the optimizer's state in main memory."""
    offload_parameters: bool = False
    """ZeRO 3: keep the weights in main memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerBackend(Kind):
    """What computes updates: one class per training engine, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.recipe.backends"
    noun: ClassVar = "learner backend"
    back_end: ClassVar[str]
    """Module with the learner, imported when it trains."""
    apart: ClassVar[bool] = False
    """True if it trains in processes of its own, which a launcher may start elsewhere."""
    trains_adapters: ClassVar[bool] = False
    """True if it trains LoRA adapters."""

    @property
    def sharding(self) -> Sharding:
        """What is spread over processes and devices. Default: nothing, on the first GPU."""
        return Sharding()

    def fitted(self, gpus: int) -> dict[str, Any]:
        """Returns options with which it runs on a number of GPUs, where it asks for more. Default: none."""
        return {}

    def lighter(self, gpus: int) -> Iterable[dict[str, Any]]:
        """Yields values of a recipe, by dotted key, with which it takes less memory on GPUs. Default: none."""
        return ()

    def joined_at(self, address: str) -> LearnerBackend:
        """Returns the options of a training that waits at HOST:PORT for ranks, which a launcher has started."""
        raise NotImplementedError(f"{type(self).__name__} has no ranks")

    def learner(self, recipe: Any, loaded: Any, logs: Path) -> Any:
        """Returns the learner of a model key.

        Args:
            recipe: The recipe of the key.
            loaded: Its model, which now belongs to the learner, and the adapter whose training goes on, if any.
            logs: Folder for the logs of its processes.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no learner")

    def module(self) -> Any:
        """Imports the module with the learner."""
        return importlib.import_module(self.back_end)
