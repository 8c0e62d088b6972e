"""What a training starts on a cluster: one program per learner rank, sampling server and retrieval server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from searchgym.train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a training starts on a node."""

    kind: Literal["rank", "server", "retrieval"]
    """``rank`` (of the learner), ``server`` (vLLM) or ``retrieval`` (`searchgym serve`)."""
    number: int
    """0-based number among those of its kind."""
    cpus: float
    """Number of CPUs that it asks for."""
    gpus: int
    """Number of GPUs that it asks for."""

    @property
    def name(self) -> str:
        """Name in messages and of the log, like ``rank 0``."""
        return f"{self.kind} {self.number}"

    @property
    def resources(self) -> dict[str, float]:
        """What the program asks for, in Ray's names."""
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})


def programs_of(recipe: Recipe, gpus: bool) -> list[Program]:
    """Returns the programs that a recipe's training starts: ranks first, then servers, then retrieval.

    Ranks are those of ``learner.backend: deepspeed``, servers the replicas of ``rollout.sampler: vllm``. A learner on
    plain torch and a sampler on transformers stay in the training's own process.

    Args:
        recipe: The recipe.
        gpus: Whether the nodes have GPUs; ranks take them unless ``learner.device`` is ``cpu``.
    """
    ray, vllm = recipe.ray, recipe.rollout.vllm
    found: list[Program] = []
    if recipe.learner.backend == "deepspeed":
        learn_on = int(gpus and recipe.learner.device != "cpu")
        found += [Program("rank", n, ray.rank_cpus, learn_on) for n in range(recipe.learner.ranks)]
    if recipe.rollout.sampler == "vllm":
        sample_on = vllm.tensor_parallel if gpus else 0
        found += [Program("server", n, ray.server_cpus, sample_on) for n in range(vllm.replicas)]
    if ray.retrieval is not None:
        found.append(Program("retrieval", 0, ray.server_cpus, 0))
    return found
