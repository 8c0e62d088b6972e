"""The plan of a training as it is shown: memory by device and phase, whether it fits, hours, and what to change."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.cli.options import PlanOptions
from searchgym.cli.output import emit, emit_rows, say, table
from searchgym.cli.training.programs import placed_programs
from searchgym.errors import DataMissingError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from searchgym.rollout.sampler_kind import Part
    from searchgym.train.plan.fit import Fit, Suggestion
    from searchgym.train.plan.hours import Estimate
    from searchgym.train.recipe.recipe import Recipe


def sized_by(recipe: Recipe, config: Path) -> Recipe:
    """Returns the recipe with all models of the size that a ``config.json`` gives."""
    if not config.exists():
        raise DataMissingError("no such file: --config takes a config.json or a folder with one", config)
    models = {name: dataclasses.replace(key, model=None) for name, key in recipe.models.items()}
    critic = dataclasses.replace(recipe.critic, model=None)
    return dataclasses.replace(recipe, model=str(config), models=models, critic=critic)


def print_plan(recipe: Recipe, planned: PlanOptions, run: Path | None, as_json: bool) -> None:
    """Prints the memory that a recipe needs on each device, whether that fits, and the hours; on a cluster, programs.

    Args:
        recipe: Recipe of the training.
        planned: Options of the plan.
        run: Folder of an earlier run, for the hours.
        as_json: Whether to print one JSON object.

    Raises:
        UsageError: The recipe does not fit; changes with which it would were printed.
    """
    if planned.config is not None:
        recipe = sized_by(recipe, planned.config)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.rollout.sampler_kind import PHASES
        from searchgym.train.loop.folder import METRICS
        from searchgym.train.plan import fit
        from searchgym.train.plan.micro_batches import sized
        from searchgym.train.plan.plan import check_plan, memory_here, plan
        from searchgym.train.recipe.load import users_code
        from searchgym.train.recipe.preflight import missing_data

        missing = missing_data(recipe)
        programs = placed_programs(recipe, bool(planned.gpus))
        memory = _planned_memory(planned, memory_here())
        recipe = sized(recipe, planned.gpus, None if planned.gpus is None else memory)
        parts: list[Part] = []
        phases = PHASES if recipe.has_critic else PHASES[:2]
        try:
            parts = plan(recipe, planned.gpus, planned.gib_of_each)
            problem = "; ".join(check_plan(parts, memory, phases))
        except UsageError as error:  # GPUs are missing, or an engine's share is too small
            problem = str(error)
        fits = fit.fits_of(parts, memory)
        estimated = _estimated(recipe, planned, run and run / METRICS)
        hours = None if estimated is None else recipe.steps * estimated.seconds / 3600
        gpus = sum(device != "cpu" for device in memory)
        gpu_gib = memory.get("cuda:0", planned.gib_of_each)
        suggested = fit.suggestions(recipe, gpus, gpu_gib, memory) if problem else []
    if as_json:
        content: dict[str, Any] = {"recipe": recipe.name, "memory": memory}
        listed = [
            dataclasses.asdict(one)
            | ({"left": one.left} if math.isfinite(one.capacity) else {"capacity": None, "left": None})
            for one in fits
        ]
        content |= {"parts": [dataclasses.asdict(part) for part in parts]}
        content |= {"fits": listed, "hours": hours, "missing": missing}
        content |= {"step": None if estimated is None else dataclasses.asdict(estimated)}
        content |= {"programs": programs} if programs else {}
        emit(content | {"suggestions": [dataclasses.asdict(one) for one in suggested]}, True)
    else:
        if not gpus and planned.gpus is None and recipe.learner.device != "cpu":
            say("this machine has no GPU: the plan is for its processors; --gpus N plans for another machine")
        if parts:
            table(("device", "GiB of", *phases), list(_rows(parts, phases, memory)), f"{recipe.name}: plan")
        if not fits:
            for device, gib in memory.items():
                say(f"{device}: has {gib:.1f} GiB")
        if programs:
            emit_rows(programs, False, "programs", "programs on the cluster")
        _say(fits, problem, suggested)
        say(_hours(recipe, hours, estimated))
        for line in missing:
            say(f"missing here: {line}")
        if code := ", ".join(users_code(recipe)):
            say(f"a plan imports no code of yours: {code} and its options are not checked")
    if problem:
        raise UsageError(f"the training does not fit: {problem}")


def _planned_memory(planned: PlanOptions, here: Mapping[str, float]) -> dict[str, float]:
    """Returns GiB by device of the machine that a plan is for, given those of this machine."""
    memory = dict(here)
    if planned.gpus is not None:
        devices = {f"cuda:{number}": planned.gib_of_each for number in range(planned.gpus)}
        memory = devices or {"cpu": here["cpu"]}
    if planned.cpu_gib is not None:
        memory["cpu"] = planned.cpu_gib
    return memory


def _estimated(recipe: Recipe, planned: PlanOptions, metrics: Path | None) -> Estimate | None:
    """Returns the estimated seconds of a step on the device that is planned for; None if it is not known."""
    from searchgym.train.plan.hours import DEVICES, Lengths, device_here, estimate

    device = planned.device
    if device is None:
        device = device_here(recipe) if planned.gpus is None else None if planned.gpus else "cpu"
    elif device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    tokens = planned.episode_tokens and Lengths(*planned.episode_tokens)
    return estimate(recipe, device, planned.step_seconds, metrics, tokens)


def _hours(recipe: Recipe, hours: float | None, estimated: Estimate | None) -> str:
    """Returns a line about the hours of a run: how long a step takes, what limits it, and how sure that is."""
    if estimated is None or hours is None:
        device = "" if recipe.method.demonstrated else "--device, "
        return f"hours: unknown (give {device}--step-seconds, or an earlier run as --out)"
    step = f"{_short(estimated.seconds)} s a step"
    if estimated.draw is not None and estimated.learn is not None:
        step += f": drawing {_short(estimated.draw)}, learning {_short(estimated.learn)}; {estimated.limit} limits"
    sure = "" if estimated.basis == "given" else f"; within a factor of {estimated.factor:g}"
    return f"hours: {_short(hours)} ({step}{sure}{f', since {estimated.why}' if estimated.why else ''})"


def _short(number: float) -> str:
    """Returns a number with two digits or more, none of them after the point from 10 on."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _say(fits: Sequence[Fit], problem: str, suggestions: Sequence[Suggestion]) -> None:
    """Prints whether the plan fits, and the suggestions."""
    alike: dict[Fit, list[str]] = {}
    for each in fits:
        alike.setdefault(dataclasses.replace(each, device=""), []).append(each.device)
    for each, devices in alike.items():
        if math.isinf(each.capacity):
            say(f"main memory: needs {each.need:.1f} GiB ({each.phase}); --cpu-gib checks whether a machine has it")
            continue
        verdict = f"yes, {each.left:.1f} GiB left" if each.left >= 0 else f"no, {-each.left:.1f} GiB too little"
        say(f"{_together(devices)}: has {each.capacity:.1f} GiB, needs {each.need:.1f} ({each.phase}); fits: {verdict}")
    for suggestion in suggestions:
        say(f"it fits with {' '.join(suggestion.changes)} ({suggestion.left:.1f} GiB left on the fullest device)")
    if problem and not suggestions:
        lacking = [each for each in fits if each.left < 0]
        remedy = "more or larger GPUs, or another model"
        if lacking and all(each.device == "cpu" for each in lacking):
            gib = math.ceil(max(each.need for each in lacking))
            remedy = f"a machine with {gib} GiB of main memory, or another model"
        say(f"no smaller micro-batches, engine's share, ZeRO, offloading or LoRA make it fit: take {remedy}")


def _rows(parts: Sequence[Part], phases: Sequence[str], memory: Mapping[str, float]) -> Iterator[list[str]]:
    """Yields table rows: the items of each device by phase, their sums and the rest; equal devices share rows."""
    alike: dict[tuple[Part, ...], list[str]] = {}
    for device in dict.fromkeys(part.device for part in parts):
        items = tuple(dataclasses.replace(part, device="") for part in parts if part.device == device)
        alike.setdefault(items, []).append(device)
    for items, devices in alike.items():
        name = _together(devices)
        for part in items:
            yield [name, part.what, *(f"{part.gib:.2f}" if phase in part.phases else "" for phase in phases)]
        sums = [sum(part.gib for part in items if phase in part.phases) for phase in phases]
        yield [name, "all", *(f"{total:.2f}" for total in sums)]
        if devices[0] not in memory:
            continue
        capacity = memory[devices[0]]
        yield [name, "capacity", *(f"{capacity:.2f}" for _ in sums)]
        yield [name, "left", *(f"{capacity - total:.2f}" for total in sums)]


def _together(devices: Sequence[str]) -> str:
    """Returns the name of one device or of several equal ones."""
    return devices[0] if len(devices) == 1 else f"{devices[0]} to {devices[-1]}, each"
