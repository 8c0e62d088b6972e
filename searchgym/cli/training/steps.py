"""The steps of a training as they are made: a bar and a table in a terminal, else a line per step."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from searchgym.cli.output import bars, say

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from searchgym.train.recipe.recipe import Recipe

HEADER_EVERY: Final = 20
"""Rows of the table between two headers."""
WIDTH: Final = 9
"""Least width of the table's columns."""


@contextmanager
def training_steps(recipe: Recipe, folder: Path | None = None) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Shows the steps of a training on standard error; yields a function that is called with each row of metrics.

    Args:
        recipe: Recipe of the training.
        folder: Run folder, whose heartbeat tells the phase of the step that is running. Default: it is not shown.
    """
    from rich.progress import TextColumn, TimeElapsedColumn

    now = [] if folder is None else [phase_column(folder)]
    with bars(*now, TimeElapsedColumn(), TextColumn("{task.fields[left]}")) as bar:
        yield StepDisplay(recipe, bar).report


def phase_column(folder: Path) -> ProgressColumn:
    """Returns a column of a progress bar with the phase that a training is in."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Phase(ProgressColumn):
        max_refresh = 0.5

        @override
        def render(self, task: Task) -> Text:
            return Text(phase_of(folder))

    return Phase()


def phase_of(folder: Path) -> str:
    """Returns the phase in the heartbeat of a run folder; before the first, ``starting``."""
    try:
        return str(json.loads((folder / "heartbeat.json").read_text())["phase"])
    except (OSError, ValueError, KeyError):
        return "starting"


def columns_of(recipe: Recipe) -> dict[str, str]:
    """Returns the columns of the table with their metrics: the few that tell whether a training goes well."""
    columns = {}
    if not recipe.method.demonstrated:
        columns = {"reward": "rollout/reward", "searches": "rollout/searches"}
    if recipe.proposer is not None:
        columns |= {"hops": "proposer/hops", "signal": "proposer/signal"}
    if recipe.curriculum is not None and len(recipe.curriculum.stages) != 1:
        columns["stage"] = "curriculum/stage"
    if recipe.validation.every:
        columns["validation"] = f"validation/{recipe.validation.metric}"
    if recipe.method.compares:
        columns["entropy"] = "learner/entropy"
        if recipe.loss.kl_coef:
            columns["KL"] = "learner/ref_kl"
        elif recipe.optimizer.several:
            columns["KL"] = "learner/old_kl"
    else:
        columns |= {"kept": "rejection/kept"} if recipe.method.least_reward is not None else {}
        columns["nll"] = "learner/nll"
    return columns | {"tokens": "learner/tokens_trained" if recipe.method.demonstrated else "rollout/tokens"}


def metric(row: Mapping[str, float], name: str) -> float | None:
    """Returns a metric of a row; of several model keys, each with one of its own, the mean. None if there is none."""
    if name in row:
        return row[name]
    first, _, last = name.partition("/")
    values = [value for key, value in row.items() if key.split("/")[0::2] == [first, last] and key.count("/") == 2]
    return sum(values) / len(values) if values else None


def number(value: float | None) -> str:
    """Formats a metric for the table; a missing one is empty."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Formats a duration for people: ``4.2 s``, ``12 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


@dataclass(slots=True)
class StepDisplay:
    """Shows rows of metrics as they come, with the time that is left."""

    recipe: Recipe
    bar: Progress
    rows: int = 0
    """Rows shown so far."""
    seconds: list[float] = field(default_factory=list)
    """Wall-clock seconds of each step of this session."""
    last: float | None = None
    """When the last row came; None before the first one."""

    def __post_init__(self) -> None:
        if not self.bar.disable:
            self.bar.add_task(f"{self.recipe.name}: step", total=self.recipe.steps, left="")

    def report(self, row: Mapping[str, float]) -> None:
        """Shows a step; step 0, which is before the first, only if it was validated."""
        step, steps, now = int(row["step"]), self.recipe.steps, time.monotonic()
        spent = sum(value for name, value in row.items() if name in ("time/draw", "time/learn", "time/validation"))
        spent = spent if self.last is None else now - self.last  # a resumed run begins with a step
        self.last, left = now, ""
        if step:
            self.seconds.append(spent)
        mean = sum(self.seconds) / max(len(self.seconds), 1)
        if self.seconds and step < steps:
            left = f"{duration(mean * (steps - step))} left"
        values = {name: metric(row, key) for name, key in columns_of(self.recipe).items()}
        displayed = bool(step) or values.get("validation") is not None
        if self.bar.disable:
            if displayed:
                parts = [f"{name} {number(value)}" for name, value in values.items() if value is not None]
                parts += [f"{duration(mean)} a step"] if self.seconds else []
                say(" · ".join([f"step {step}/{steps}", *parts, *([left] if left else [])]))
            return
        self.bar.update(self.bar.task_ids[0], completed=step, left=left, refresh=True)
        if displayed:
            self._add_row(step, values, spent)
        if step == steps:
            self.bar.remove_task(self.bar.task_ids[0])

    def _add_row(self, step: int, values: Mapping[str, float | None], spent: float) -> None:
        """Prints a step as a row of the table, above the bar."""
        cells = {"step": str(step)} | {name: number(value) for name, value in values.items()}
        cells["seconds"] = f"{spent:.1f}"
        widths = [max(WIDTH, len(name) + 2) for name in cells]
        if self.rows % HEADER_EVERY == 0:
            say("".join(name.rjust(width) for name, width in zip(cells, widths, strict=True)))
        say("".join(cell.rjust(width) for cell, width in zip(cells.values(), widths, strict=True)))
        self.rows += 1
