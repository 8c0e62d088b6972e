"""What a training starts on a cluster: one program per learner rank, sampling server and retrieval server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from searchgym.train.recipe.launchers.ray import Ray
from searchgym.train.recipe.recipe import Recipe

SERVER_CPUS: Final = 1.0
"""Number of CPUs that a sampling server and a retrieval server ask for."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a training starts on a node."""

    kind: Literal["rank", "server", "retrieval"]
    """``rank`` (of the learner), ``server`` (vLLM) or ``retrieval`` (`searchgym serve retriever`)."""
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


def programs_of(recipe: Recipe, options: Ray, gpus: bool) -> list[Program]:
    """Returns the programs that a recipe's training starts: ranks first, then servers, then retrieval.

    A learner and a sampler without processes of their own stay in the training's.

    Args:
        recipe: The recipe.
        options: What each program asks of the cluster.
        gpus: Whether the nodes have GPUs; ranks take them unless ``learner.device`` is ``cpu``.
    """
    sampler, ranks = (
        recipe.rollout.sampler,
        recipe.learner.backend.sharding.ranks if recipe.learner.backend.apart else 0,
    )
    learn_on, sample_on = int(gpus and recipe.learner.device != "cpu"), sampler.gpus_each if gpus else 0
    found = [Program("rank", n, options.rank_cpus, learn_on) for n in range(ranks)]
    found += [Program("server", n, SERVER_CPUS, sample_on) for n in range(sampler.engines)]
    return found + [Program("retrieval", 0, SERVER_CPUS, 0)] * (options.retrieval is not None)
