"""The section of a report about trainings: a table, and curves with a band over the seeds of each recipe."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.eval.report.blocks import Block, Heading, Picture, TextBlock, filled, finite, number
from searchgym.eval.report.episodes import cut
from searchgym.eval.report.evaluations import LONGEST_NAME
from searchgym.eval.report.figures import MAX_RUNS, Points, Series, panels
from searchgym.eval.report.runs import RunData

HEAD: Final = (
    "#", "recipe", "validation", "before", "after", "lowest to highest", "reward, last step", "steps",
    "tokens generated", "runs", "seeds",
)  # fmt: skip
"""Heads of the table."""
CURVES: Final = {
    "rollout/reward": "reward of sampled episodes, training questions",
    "rollout/searches": "searches per episode",
    "rollout/generated_tokens": "tokens generated per episode",
    "rollout/illegal": "share of malformed outputs",
    "proposer/signal": "proposed questions that some attempts, but not all, got right",
}
"""Metric to the title of its panel, below that of the validation."""
EM_BY_KIND: Final = "validation/em/"
"""Prefix of the metrics of the validation's EM by kind of question."""


@dataclass(frozen=True, slots=True)
class RecipeRuns:
    """Trainings by one recipe that differ only in their seed."""

    runs: Sequence[RunData]

    @property
    def name(self) -> str:
        """Name of the recipe and, of a single run, of its folder."""
        recipe = cut(str(self.runs[0].recipe.get("name", "unnamed recipe")), LONGEST_NAME)
        return recipe if len(self.runs) > 1 else f"{recipe} ({self.runs[0].name})"

    @property
    def validation(self) -> str:
        """Metric by which the recipe chooses its best checkpoint."""
        options = self.runs[0].recipe.get("validation")
        return f"validation/{options.get('metric', 'em') if isinstance(options, dict) else 'em'}"

    def curve(self, metric: str) -> dict[int, list[float]]:
        """Returns the values of a metric by step, one of each run that has it."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for row in run.metrics:
                step, value = row.get("step"), finite(row.get(metric))
                if isinstance(step, int) and value is not None:
                    values.setdefault(step, []).append(value)
        return dict(sorted(values.items()))

    def kinds(self) -> list[str]:
        """Returns the kinds of questions whose EM the validation reports, in alphabetical order."""
        names = {name for run in self.runs for row in run.metrics for name in row if name.startswith(EM_BY_KIND)}
        return sorted(name.removeprefix(EM_BY_KIND) for name in names if self.curve(name))


def groups_of(runs: Iterable[RunData]) -> list[RecipeRuns]:
    """Returns trainings grouped by recipe without its seed, in order of their first runs."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        recipe = {name: value for name, value in run.recipe.items() if name != "seed"}
        groups.setdefault(json.dumps(recipe, sort_keys=True, default=str), []).append(run)
    return [RecipeRuns(alike) for alike in groups.values()]


def training_outcome(group: RecipeRuns) -> str:
    """Returns one sentence with the validation scores before and after training; empty without both."""
    curve = group.curve(group.validation)
    if len(curve) < 2:
        return ""
    values = list(curve.values())
    name, metric = cut(group.name, LONGEST_NAME), cut(group.validation.removeprefix("validation/"), LONGEST_NAME)
    metric = metric.upper() if metric in ("em", "f1") else metric
    seeds = f", mean of {len(group.runs)} runs" if len(group.runs) > 1 else ""
    steps = max(curve)
    return (
        f"Training {name}: validation {metric} {_mean(values[0])} before, {_mean(values[-1])} after "
        f"{steps} step{'s' * (steps != 1)}{seeds}."
    )


def training_blocks(runs: Sequence[RunData]) -> list[Block]:
    """Returns the section about trainings; nothing if there are none."""
    groups = groups_of(runs)
    if not groups:
        return []
    blocks: list[Block] = [Heading("Training")]
    blocks.append(filled(HEAD, [_cells(number, group) for number, group in enumerate(groups, start=1)]))
    if len(groups) > MAX_RUNS:
        blocks.append(TextBlock([f"The figure shows the first {MAX_RUNS} of {len(groups)} recipes."]))
    series = []
    for group in groups[:MAX_RUNS]:
        metric = group.validation
        titles = {metric: f"{metric.removeprefix('validation/')} of greedy episodes, validation questions", **CURVES}
        curves: dict[str, Points] = {}
        for name, title in titles.items():
            if curve := group.curve(name):
                curves[title] = _points(curve)
        series.append(Series(group.name, curves))
    caption = (
        "Training curves. Runs by one recipe that differ only in their seed are one line, their mean; the band spans "
        "the lowest to the highest run. Validation is greedy and uses other questions than training."
    )
    picture = panels(series, "step", "Training curves by step", caption, integer=True)
    return [*blocks, *filter(None, (picture, _kinds_picture(groups[:MAX_RUNS])))]


def _kinds_picture(groups: Sequence[RecipeRuns]) -> Picture | None:
    """Returns a figure of the validation's EM by kind of question, one panel per recipe; None without kinds."""
    lines: dict[str, dict[str, Points]] = {}
    for n, group in enumerate(groups, start=1):
        for kind in group.kinds():
            curve = group.curve(f"{EM_BY_KIND}{kind}")
            lines.setdefault(kind, {})[f"{n}  {group.name}"] = _points(curve)
    series = [Series(kind, by_recipe) for kind, by_recipe in sorted(lines.items())[:MAX_RUNS]]
    caption = "EM of the validation by kind of question, one panel per recipe; bands as above."
    return panels(series, "step", "EM of the validation by kind of question", caption, integer=True, numbered=False)


def _points(curve: Mapping[int, Sequence[float]]) -> Points:
    """Returns the points of a curve: at each step the mean over runs, the lowest and the highest."""
    return [(float(step), statistics.fmean(values), min(values), max(values)) for step, values in curve.items()]


def _cells(row: int, group: RecipeRuns) -> list[str]:
    """Returns the cells of one group."""
    validation, reward = group.curve(group.validation), group.curve("rollout/reward")
    steps, tokens = group.curve("step"), list[float]()
    for run in group.runs:
        written = [value for step in run.metrics if (value := finite(step.get("generated_tokens"))) is not None]
        tokens += written[-1:]
    ends = [list(validation.values())[end] for end in (0, -1)] if validation else [[], []]
    low_high = f"{min(ends[1]):.3f} to {max(ends[1]):.3f}" if len(ends[1]) > 1 else ""
    return [
        str(row),
        cut(str(group.runs[0].recipe.get("name", "")), LONGEST_NAME),
        cut(group.validation.removeprefix("validation/"), LONGEST_NAME),
        _mean(ends[0]),
        _mean(ends[1]) if len(validation) > 1 else "",
        low_high,
        _mean(list(reward.values())[-1] if reward else []),
        str(max(steps, default="")),
        f"{statistics.fmean(tokens):,.0f}" if tokens else "",
        ", ".join(run.name for run in group.runs),
        cut(", ".join(str(run.recipe.get("seed", "")) for run in group.runs), LONGEST_NAME),
    ]


def _mean(values: Sequence[float]) -> str:
    """Formats a mean; empty if there is nothing to average."""
    return number(statistics.fmean(values)) if values else ""
