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
    """HOST:PORT of a running cluster. Default: the training starts a cluster on this machine and ends it."""
    host: str | None = None
    """Address at which other nodes reach this machine. Default: the address that Ray detects."""
    retrieval: str | None = None
    """Index folder, corpus file or corpus card for a retrieval server on the cluster, where it must have the same path
    or name. Default: no server, the training process searches."""
    rank_cpus: Annotated[float, Gt(0)] = 1
    """Number of CPUs reserved for each learner rank, in addition to its GPU, if any; each server reserves 1 CPU."""
    spread: bool = False
    """If true, programs are spread over as many nodes as possible; if false, over as few."""
    seconds: Annotated[float, Gt(0)] = 300
    """Maximum seconds to wait for nodes with enough CPUs and GPUs, and for the programs to start."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not (setting.programs or self.retrieval):
            yield (
                "launch ray starts ranks, servers or retrieval: set learner.backend deepspeed, rollout.sampler vllm or "
                "launch.retrieval"
            )
        if self.retrieval and setting.retriever:
            yield "launch.retrieval and env_options.retriever both name a retriever: choose one"

    @override
    def launched(self, recipe: R, out: Path) -> AbstractContextManager[R]:
        """Starts the programs on Ray; server logs go to a folder next to the run folder, named ``*.ray``."""
        return importlib.import_module(self.back_end).launched(recipe, self, out)  # type: ignore[no-any-return]
