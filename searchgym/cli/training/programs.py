"""Programs that a training with ``launch=ray`` starts, and the nodes that they start on, for ``train --plan``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from searchgym.cli.output import say

if TYPE_CHECKING:
    from searchgym.train.recipe.recipe import Recipe


def placed_programs(recipe: Recipe, gpus: bool) -> list[dict[str, Any]]:
    """Returns a row for the training and for each program that it starts on a cluster; none if it starts none.

    Args:
        recipe: Recipe of the training.
        gpus: Whether the nodes have GPUs, if the recipe names no cluster.

    Raises:
        UsageError: The cluster that the recipe names cannot be reached, or lacks CPUs or GPUs.
    """
    from searchgym.train.recipe.launchers.ray import Ray

    options = recipe.launch
    if not isinstance(options, Ray):
        return []
    from searchgym.train.launch.cluster import connected, where
    from searchgym.train.launch.plan import programs_of

    if options.address is None:
        programs = programs_of(recipe, options, gpus)
        nodes = ["this machine"] * len(programs)
        cpus, here = sum(program.cpus for program in programs), os.cpu_count() or 1
        if cpus > here:
            say(f"the programs need {cpus:g} CPUs, this machine has {here}: name a cluster, launch.address=HOST:PORT")
    else:
        with connected(options) as ray:
            programs = programs_of(recipe, options, bool(ray.cluster_resources().get("GPU")))
            nodes = where(ray, programs, options)
    first = {"program": "training", "CPUs": None, "GPUs": None, "node": "this machine"}
    return [first] + [
        {"program": program.name, "CPUs": program.cpus, "GPUs": program.gpus, "node": node}
        for program, node in zip(programs, nodes, strict=True)
    ]
