"""Curves of trainings side by side, a panel each: what their episodes scored by step, and what validation scored.

    python studies/methods/curves.py runs/described/* --out studies/methods/agents.png [--json]

The table has the mean of the first and the last three steps, so that a curve's direction can be read without the
picture. A training of demonstrations has no episodes: its loss is drawn instead.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.corpora.files import iter_jsonl

CURVES: Final = ("rollout/em", "learner/loss")
"""Metrics to draw; the first that a run has."""
VALIDATION: Final = "validation/em"
COLUMNS: Final = 3
MEAN_OF: Final = 3
"""Number of steps at either end that the table averages."""
Curve = tuple[str, list[float], list[float]]
"""Metric, steps and values."""


def main() -> None:
    """Reads the runs, prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of trainings")
    parser.add_argument("--out", type=Path, help="PNG file to draw")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    metrics = {name_of(run): [row for _, row in iter_jsonl(run / "metrics.jsonl")] for run in args.runs}
    emit_rows([row_of(name, rows) for name, rows in metrics.items()], args.json, "results", "curves of trainings")
    if args.out:
        draw(metrics, args.out)


def name_of(run: Path) -> str:
    """Returns the name of a run's panel; scripts keep the run itself in a folder ``train`` below the name."""
    return run.parent.name if run.name == "train" else run.name


def curve_of(rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Returns the curve that a run is drawn by.

    Raises:
        SystemExit: The run has none of the metrics.
    """
    for metric in CURVES:
        if any(metric in row for row in rows):
            return metric, *points(rows, metric)
    raise SystemExit(f"a run has none of {', '.join(CURVES)} in its metrics.jsonl: is it a training?")


def points(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[list[float], list[float]]:
    """Returns the steps at which a metric was written, and its values."""
    found = [(row["step"], row[metric]) for row in rows if metric in row]
    return [step for step, _ in found], [value for _, value in found]


def row_of(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's row of the table."""
    metric, _, values = curve_of(rows)
    validated = points(rows, VALIDATION)[1]
    return {
        "run": name,
        "metric": metric,
        "steps": len(values),
        "first": float(np.mean(values[:MEAN_OF])),
        "last": float(np.mean(values[-MEAN_OF:])),
        "validation": " ".join(f"{value:.2f}" for value in validated) or None,
    }


def draw(metrics: Mapping[str, Sequence[Mapping[str, Any]]], out: Path) -> None:
    """Draws a panel for each run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = math.ceil(len(metrics) / COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 2.6 * lines), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(lines, COLUMNS, squeeze=False).flatten()
    for panel, (name, rows) in zip(panels, metrics.items(), strict=False):
        metric, steps, values = curve_of(rows)
        panel.plot(steps, values, marker="o", markersize=3, label=metric)
        validated = points(rows, VALIDATION)
        if validated[0]:
            panel.plot(*validated, marker="s", linestyle="--", label=VALIDATION)
        panel.set(title=name, xlabel="step", ylim=(0, None))
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small")
    for panel in panels[len(metrics) :]:
        panel.remove()
    out.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(out)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
