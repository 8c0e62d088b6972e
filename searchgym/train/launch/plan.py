"""Programs that a training starts on a cluster: one per learner rank, sampling server and retrieval server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from searchgym.train.recipe.launchers.ray import Ray
from searchgym.train.recipe.recipe import Recipe

SERVER_CPUS: Final = 1.0
"""Number of CPUs reserved for a sampling server or a retrieval server."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a training starts on a node."""

    kind: Literal["rank", "server", "retrieval"]
    """Kind of program: ``rank`` (of the learner), ``server`` (vLLM) or ``retrieval`` (a retrieval server)."""
    number: int
    """0-based number among the programs of the same kind."""
    cpus: float
    """Number of CPUs reserved for the program."""
    gpus: int
    """Number of GPUs reserved for the program."""

    @property
    def name(self) -> str:
        """Name in messages and of the log file, such as ``rank 0``."""
        return f"{self.kind} {self.number}"

    @property
    def resources(self) -> dict[str, float]:
        """Resources of the program, by Ray's names."""
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})


def programs_of(recipe: Recipe, options: Ray, gpus: bool) -> list[Program]:
    """Returns the programs that a recipe's training starts: ranks first, then servers, then retrieval.

    A learner or sampler without separate processes runs in the training's process.

    Args:
        recipe: The recipe.
        options: Options with the resources of each program.
        gpus: True if the nodes have GPUs; ranks use them unless ``learner.device`` is ``cpu``.
    """
    sampler, ranks = (
        recipe.rollout.sampler,
        recipe.learner.backend.sharding.ranks if recipe.learner.backend.apart else 0,
    )
    learn_on, sample_on = int(gpus and recipe.learner.device != "cpu"), sampler.gpus_each if gpus else 0
    programs = [Program("rank", n, options.rank_cpus, learn_on) for n in range(ranks)]
    programs += [Program("server", n, SERVER_CPUS, sample_on) for n in range(sampler.engines)]
    return programs + [Program("retrieval", 0, SERVER_CPUS, 0)] * (options.retrieval is not None)
