"""The plan of a training as it is shown: memory by device and phase, whether it fits, hours, and what to change."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.cli.output import emit, say, table
from searchgym.errors import DataMissingError, UsageError

if TYPE_CHECKING:
    from searchgym.rollout.sampler_kind import Part
    from searchgym.train.plan.fit import Fit, Suggestion
    from searchgym.train.recipe.recipe import Recipe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that a plan is made for, as the options of the command give it."""

    gpus: int | None
    """Number of GPUs; this machine's if None."""
    gpu_gib: float
    """GiB of each of `gpus`."""
    cpu_gib: float | None
    """GiB of main memory; if None, what is available here, and not checked where `gpus` plans another machine."""

    def memory(self) -> dict[str, float]:
        """Returns GiB by device; without ``cpu`` where the main memory is not checked."""
        from searchgym.train.plan.plan import memory_here

        memory = memory_here()
        if self.gpus:
            memory = {f"cuda:{number}": self.gpu_gib for number in range(self.gpus)}
        elif self.gpus == 0:
            memory = {"cpu": memory["cpu"]}
        return memory | ({} if self.cpu_gib is None else {"cpu": self.cpu_gib})


def sized_by(recipe: Recipe, config: Path) -> Recipe:
    """Returns the recipe with all models of the size that a ``config.json`` gives."""
    if not config.exists():
        raise DataMissingError("no such file: --config takes a config.json or a folder with one", config)
    models = {name: dataclasses.replace(own, model=None) for name, own in recipe.models.items()}
    critic = dataclasses.replace(recipe.critic, model=None)
    return dataclasses.replace(recipe, model=str(config), models=models, critic=critic)


def print_plan(recipe: Recipe, machine: Machine, step_seconds: float | None, run: Path | None, as_json: bool) -> None:
    """Prints the memory that a recipe needs on each device, whether that fits, and the hours of the run.

    Raises:
        UsageError: The recipe does not fit; changes with which it would were printed.
    """
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.rollout.sampler_kind import PHASES
        from searchgym.train.plan import fit
        from searchgym.train.plan.plan import check_plan, plan
        from searchgym.train.recipe.load import users_code
        from searchgym.train.recipe.preflight import missing_data

        missing = missing_data(recipe)
        memory = machine.memory()
        parts: list[Part] = []
        phases = PHASES if recipe.has_critic else PHASES[:2]
        try:
            parts = plan(recipe, machine.gpus, machine.gpu_gib)
            problem = "; ".join(check_plan(parts, memory, phases))
        except UsageError as error:  # GPUs are missing, or an engine's share is too small
            problem = str(error)
        fits, hours = fit.fits_of(parts, memory), fit.hours(recipe.steps, step_seconds, run)
        gpus = sum(device != "cpu" for device in memory)
        gpu_gib = memory.get("cuda:0", machine.gpu_gib)
        found = fit.suggestions(recipe, gpus, gpu_gib, memory) if problem else []
    if as_json:
        content: dict[str, Any] = {"recipe": recipe.name, "memory": memory}
        content |= {"parts": [dataclasses.asdict(part) for part in parts]}
        content |= {"fits": [_as_json(own) for own in fits], "hours": hours}
        content |= {"missing": missing}
        emit(content | {"suggestions": [dataclasses.asdict(one) for one in found]}, True)
    else:
        if parts:
            table(("device", "GiB of", *phases), list(_rows(parts, phases, memory)), f"{recipe.name}: plan")
        if not fits:
            for device, gib in memory.items():
                say(f"{device}: has {gib:.1f} GiB")
        _say(fits, hours, problem, found)
        for line in missing:
            say(f"missing here: {line}")
        if code := ", ".join(users_code(recipe)):
            say(f"a plan imports no code of yours: {code} and its options are not checked")
    if problem:
        raise UsageError(f"the training does not fit: {problem}")


def _say(fits: Sequence[Fit], hours: float | None, problem: str, found: Sequence[Suggestion]) -> None:
    """Prints whether the plan fits, the hours, and the suggestions."""
    alike: dict[Fit, list[str]] = {}
    for own in fits:
        alike.setdefault(dataclasses.replace(own, device=""), []).append(own.device)
    for own, devices in alike.items():
        if math.isinf(own.capacity):
            say(f"main memory: needs {own.need:.1f} GiB ({own.phase}); --cpu-gib checks whether a machine has it")
            continue
        verdict = f"yes, {own.left:.1f} GiB left" if own.left >= 0 else f"no, {-own.left:.1f} GiB too little"
        say(f"{_together(devices)}: has {own.capacity:.1f} GiB, needs {own.need:.1f} ({own.phase}); fits: {verdict}")
    unknown = "unknown (give --step-seconds, or an earlier run as --out)"
    say(f"hours: {unknown if hours is None else f'{hours:.1f}'}")
    for one in found:
        say(f"it fits with {' '.join(one.changes)} ({one.left:.1f} GiB left on the fullest device)")
    if problem and not found:
        lacking = [own for own in fits if own.left < 0]
        wanted = "more or larger GPUs, or another model"
        if lacking and all(own.device == "cpu" for own in lacking):
            gib = math.ceil(max(own.need for own in lacking))
            wanted = f"a machine with {gib} GiB of main memory, or another model"
        say(f"no smaller micro-batches, engine's share, ZeRO, offloading or LoRA make it fit: take {wanted}")


def _as_json(fit: Fit) -> dict[str, Any]:
    """Returns a fit as JSON: null where the memory of the device is not checked."""
    checked = math.isfinite(fit.capacity)
    return dataclasses.asdict(fit) | ({"left": fit.left} if checked else {"capacity": None, "left": None})


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
