"""Learner backend ``torch``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.options import Setting
from searchgym.train.recipe.backend import KEEP_FLOAT32, LearnerBackend, Sharding, adapter_problems
from searchgym.train.recipe.backends.deepspeed import DeepSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch(LearnerBackend):
    """Trains with plain torch in this process."""

    back_end: ClassVar = "searchgym.train.learner.learner"
    trains_adapters: ClassVar = True

    gpu: Annotated[int, Ge(0)] | None = None
    """Number of the GPU to train on. Default: the first."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if setting.dtype == "bfloat16" and not setting.lora:
            copy = "learner.backend deepspeed, which keeps a copy in float32"
            yield f"learner.dtype bfloat16 needs {copy}, or lora: small updates are lost in bfloat16; {KEEP_FLOAT32}"
        elif setting.dtype == "bfloat16" and setting.critic:
            copy = "learner.backend deepspeed with zero 1, 2 or 3, which keeps a copy in float32"
            yield f"learner.dtype bfloat16 with a critic, which is trained whole, needs {copy}; or {KEEP_FLOAT32}"
        yield from adapter_problems(setting)

    @property
    @override
    def sharding(self) -> Sharding:
        return Sharding(gpus=None if self.gpu is None else [self.gpu])

    @override
    def lighter(self, gpus: int) -> Iterable[dict[str, Any]]:
        """Yields the alternatives of DeepSpeed, which shards and offloads."""
        yield from ({"learner.backend": "deepspeed"} | values for values in DeepSpeed().lighter(gpus))

    @override
    def learner(self, recipe: Any, loaded: Any, logs: Path) -> Any:
        from searchgym.rollout.loading import device_of

        device = device_of(recipe.learner.device)
        if device == "cuda" and self.gpu is not None:
            device = f"cuda:{self.gpu}"
        return self.module().LocalLearner(recipe, loaded.model.to(device), adapter=loaded.adapter)
