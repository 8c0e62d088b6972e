"""Interface of learner backends, one class each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from searchgym.options import Kind, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What a backend spreads over processes and devices, for the plan of memory."""

    ranks: int = 1
    """Number of processes, each with a GPU of its own on a GPU machine."""
    gpus: list[int] | None = None
    """GPU numbers of the ranks, in order. Default: counted from 0."""
    zero: int = 0
    """What is sharded over the ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too."""
    offload_optimizer: bool = False
    """True if the optimizer's state is kept in main memory."""
    offload_parameters: bool = False
    """True if the weights are kept in main memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Kind):
    """What computes updates: one class per training engine, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.recipe.backends"
    noun: ClassVar = "learner backend"
    back_end: ClassVar[str]
    """Module with the learner, imported when it trains."""
    apart: ClassVar[bool] = False
    """True if it trains in processes of its own, which a launcher may start elsewhere."""
    trains_adapters: ClassVar[bool] = False
    """True if it trains LoRA adapters."""

    @classmethod
    def short(cls, value: object) -> object:
        """Reads a text as the backend's name."""
        return {"kind": value} if isinstance(value, str) else value

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each choice of the run that does not go with this backend."""
        return ()

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

    def joined_at(self, address: str) -> Backend:
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
