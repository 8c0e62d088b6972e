"""Options of a recipe that say where the programs of its training start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from searchgym.train.recipe.recipe import Recipe

Launcher = Literal["here", "ray"]
"""Where learner ranks and sampling servers start: on this machine, or on the nodes of a Ray cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """``launch: ray``: the cluster, and what each program asks of it."""

    address: str | None = None
    """HOST:PORT of a running cluster. Default: one on this machine, which the training starts and ends."""
    host: str | None = None
    """Address of this machine for the ranks on other nodes. Default: what Ray finds."""
    retrieval: str | None = None
    """Index folder, corpus file or corpus card that a retrieval server on the cluster serves, under the same path or
    name there. Default: the training retrieves by itself."""
    rank_cpus: float = 1
    """Number of CPUs that each rank of the learner asks for, beside a GPU where it learns on one."""
    server_cpus: float = 1
    """Number of CPUs that each sampling server and the retrieval server ask for."""
    spread: bool = False
    """Whether programs start on as many nodes as possible instead of as few."""
    seconds: float = 300
    """Seconds to wait for nodes with enough CPUs and GPUs, and for the programs to start."""


def launch_problems(recipe: Recipe) -> list[str]:
    """Returns problems with ``launch`` and ``ray``."""
    ray, vllm, found = recipe.ray, recipe.rollout.vllm, list[str]()
    if recipe.launch == "here":
        return ["ray: its options act with launch ray only"] if ray != RayOptions() else []
    ranks, servers = recipe.learner.backend == "deepspeed", recipe.rollout.sampler == "vllm"
    if not (ranks or servers or ray.retrieval):
        found.append(
            "launch ray starts ranks, servers or retrieval: set learner.backend deepspeed, rollout.sampler vllm or "
            "ray.retrieval"
        )
    if vllm.servers is not None or recipe.learner.listen is not None:
        found.append("launch ray starts servers and ranks itself: leave rollout.vllm.servers and learner.listen out")
    if vllm.gpus is not None or recipe.learner.gpus is not None:
        found.append("launch ray chooses the GPUs: leave rollout.vllm.gpus and learner.gpus out")
    if vllm.sleep:
        found.append("launch ray gives ranks and servers GPUs of their own: set rollout.vllm.sleep 0")
    if ray.retrieval and "retriever" in recipe.env_options:
        found.append("ray.retrieval serves what env_options.retriever would name: choose one")
    for name, value in {"rank_cpus": ray.rank_cpus, "server_cpus": ray.server_cpus, "seconds": ray.seconds}.items():
        if not 0 < value < math.inf:
            found.append(f"ray.{name} is {value}: expected a number above 0")
    return found
