"""Options of a recipe that say where the programs of its training start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from searchgym.options import Options

Launcher = Literal["here", "ray"]
"""Where learner ranks and sampling servers start: on this machine, or on the nodes of a Ray cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(Options):
    """``launch: ray``: the cluster, and what each program asks of it."""

    address: str | None = None
    """HOST:PORT of a running cluster. Default: one on this machine, which the training starts and ends."""
    host: str | None = None
    """Address of this machine for the ranks on other nodes. Default: what Ray finds."""
    retrieval: str | None = None
    """Index folder, corpus file or corpus card that a retrieval server on the cluster serves, under the same path or
    name there. Default: the training retrieves by itself."""
    rank_cpus: Annotated[float, Gt(0)] = 1
    """Number of CPUs that each rank of the learner asks for, beside a GPU where it learns on one."""
    server_cpus: Annotated[float, Gt(0)] = 1
    """Number of CPUs that each sampling server and the retrieval server ask for."""
    spread: bool = False
    """Whether programs start on as many nodes as possible instead of as few."""
    seconds: Annotated[float, Gt(0)] = 300
    """Seconds to wait for nodes with enough CPUs and GPUs, and for the programs to start."""
