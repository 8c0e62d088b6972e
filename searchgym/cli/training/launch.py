"""The ``launch`` command: what a training with ``launch: ray`` starts, and on which node."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, cast

import typer

from searchgym.cli.options import Overrides, RecipeName
from searchgym.cli.output import Json, emit_rows, say
from searchgym.errors import UsageError


def launch(
    recipe: RecipeName,
    overrides: Overrides = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print which program would start where.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="Assume nodes with GPUs, where no cluster is named.")] = False,
    json: Json = False,
) -> None:
    """Print what a training with launch=ray would start, and on which node of launch.address."""
    if not plan:
        raise UsageError(
            f"searchgym train {recipe} launch=ray starts it; with --plan this command prints what and where"
        )
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.train.launch.cluster import connected, where
        from searchgym.train.launch.plan import programs_of
        from searchgym.train.recipe.launchers.ray import Ray
        from searchgym.train.recipe.load import load_recipe

        loaded = load_recipe(recipe, ["launch.kind=ray", *(overrides or [])])
        options = cast(Ray, loaded.launch)
        if options.address is None:
            programs = programs_of(loaded, options, gpus)
            nodes = ["this machine"] * len(programs)
            asked, here = sum(program.cpus for program in programs), os.cpu_count() or 1
            if asked > here:
                say(f"{asked:g} CPUs are asked for, this machine has {here}: name a cluster, launch.address=HOST:PORT")
        else:
            with connected(options) as ray:
                programs = programs_of(loaded, options, bool(ray.cluster_resources().get("GPU")))
                nodes = where(ray, programs, options)
    rows = [
        {"program": program.name, "CPUs": program.cpus, "GPUs": program.gpus, "node": node}
        for program, node in zip(programs, nodes, strict=True)
    ]
    rows.insert(0, {"program": "training", "CPUs": None, "GPUs": None, "node": "this machine"})
    emit_rows(rows, json, "programs", loaded.name)
