"""Launcher ``ray``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Gt
from typing_extensions import override

from searchgym.options import Setting
from searchgym.train.recipe.launching import Launcher, R


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Launcher):
    """Starts learner ranks and sampling servers on the nodes of a Ray cluster; see `searchgym.train.launch`."""

    back_end: ClassVar = "searchgym.train.launch.cluster"

    address: str | None = None
    """HOST:PORT of a running cluster. Default: one on this machine, which the training starts and ends."""
    host: str | None = None
    """Address of this machine for the ranks on other nodes. Default: what Ray finds."""
    retrieval: str | None = None
    """Index folder, corpus file or corpus card that a retrieval server on the cluster serves, under the same path or
    name there. Default: the training retrieves by itself."""
    rank_cpus: Annotated[float, Gt(0)] = 1
    """Number of CPUs that each rank of the learner asks for, beside a GPU where it learns on one; servers ask for 1."""
    spread: bool = False
    """Whether programs start on as many nodes as possible instead of as few."""
    seconds: Annotated[float, Gt(0)] = 300
    """Seconds to wait for nodes with enough CPUs and GPUs, and for the programs to start."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not (setting.programs or self.retrieval):
            yield (
                "launch ray starts ranks, servers or retrieval: set learner.backend deepspeed, rollout.sampler vllm or "
                "launch.retrieval"
            )
        if self.retrieval and setting.retriever:
            yield "launch.retrieval serves what env_options.retriever would name: choose one"

    @override
    def launched(self, recipe: R, out: Path) -> AbstractContextManager[R]:
        """Logs of servers go to a folder beside the run's, whose name ends in ``.ray``."""
        return importlib.import_module(self.back_end).launched(recipe, self, out)  # type: ignore[no-any-return]
