"""Learner backend ``deepspeed``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from searchgym.options import Setting
from searchgym.train.recipe.backend import LearnerBackend, Sharding, adapter_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed(Sharding, LearnerBackend):
    """Trains with DeepSpeed in separate processes, one per GPU, which shard the training state by ZeRO stage.

    Source: ZeRO, arXiv 1910.02054.
    """

    back_end: ClassVar = "searchgym.train.distributed.remote"
    apart: ClassVar = True
    trains_adapters: ClassVar = True

    listen: str | None = None
    """HOST:PORT at which to wait for ranks that torchrun starts on other machines, which must share the run folder.
    Default: the ranks are started on this machine."""

    @override
    def problems(self) -> Iterable[str]:
        if self.gpus is not None and len(self.gpus) != self.ranks:
            yield f"gpus names {len(self.gpus)} GPUs for {self.ranks} ranks"
        if self.gpus is not None and self.listen is not None:
            yield "gpus: with listen, each rank chooses its GPU where it is started"
        if self.listen is not None and not re.fullmatch(r".+:\d{1,5}", self.listen):
            yield f"listen is {self.listen!r}: expected HOST:PORT, like 10.0.0.1:29400"
        if self.offload_optimizer and self.zero == 0:
            yield "offload_optimizer needs zero 1, 2 or 3"
        if self.offload_parameters and self.zero != 3:
            yield "offload_parameters needs zero 3"

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if setting.dtype == "bfloat16" and self.zero == 0 and not (setting.lora and not setting.critic):
            yield "learner.dtype bfloat16 needs zero 1, 2 or 3, which keeps a copy in float32"
        yield from adapter_problems(setting)
        if setting.launcher is not None:
            if self.listen is not None:
                yield f"launch {setting.launcher} starts ranks itself: leave listen out"
            if self.gpus is not None:
                yield f"launch {setting.launcher} chooses the GPUs: leave gpus out"
        if setting.trained_keys > 1 and (self.listen is not None or setting.launcher is not None):
            yield "listen, launch: ranks that are started elsewhere train one model key, not several"

    @property
    @override
    def sharding(self) -> Sharding:
        return self

    @override
    def fitted(self, gpus: int) -> dict[str, Any]:
        return {"ranks": gpus, "gpus": None} if self.ranks > gpus else {}

    @override
    def lighter(self, gpus: int) -> Iterable[dict[str, Any]]:
        sharded = {"learner.backend.zero": 3, "learner.dtype": "bfloat16"}
        optimizer = {"learner.backend.offload_optimizer": True}
        if gpus > 1 and (self.zero, self.ranks) != (3, gpus):
            yield sharded | {"learner.backend.ranks": gpus}
        if gpus and not self.offload_optimizer:
            yield {"learner.backend.zero": max(self.zero, 2)} | optimizer
        if gpus and not self.offload_parameters:
            yield sharded | optimizer | {"learner.backend.offload_parameters": True}

    @override
    def joined_at(self, address: str) -> LearnerBackend:
        return replace(self, listen=address)

    @override
    def learner(self, recipe: Any, loaded: Any, logs: Path) -> Any:
        """Returns a remote learner, whose ranks load the model again."""
        return self.module().RemoteLearner(recipe, logs, recipe.deadline.learn, loaded.adapter)
