"""Accuracy against tokens at test time: samples that are selected by vote or value, guided, or revised.

    python studies/several_samples/several_samples.py NAME=RUN ... [--samples 1 2 4 8] [--figure FILE] [--json]

RUN is the folder of `searchgym eval --samples N`; README.md has the commands. The questions of runs with the same NAME
count together. For each number n, one of the first n samples of a question is selected, and the tokens of all n are
added up: those that the model generated, and those that it read. EM has a 95 % bootstrap interval over questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.errors import UsageError
from searchgym.eval import bootstrap_ci
from searchgym.records import Episode
from searchgym.rollout import read_episodes
from searchgym.scoring.selection import Sampled, selected

DRAWN: Final = ("vote", "value")
"""Selections that the picture shows."""


def main() -> None:
    """Prints a row per run, selection and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--figure", type=Path, help="PNG file to draw")
    parser.add_argument("--title", default="At equal tokens, which way to use several samples is right most often?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    runs: dict[str, list[list[Episode]]] = {}
    for name, _, folder in (run.partition("=") for run in given.runs):
        runs.setdefault(name, []).extend(attempts_of(Path(folder)))
    rows = [row for name, groups in runs.items() for row in rows_of(name, groups, given.samples)]
    emit_rows(rows, given.json, "results", "EM of the selected sample, and tokens of all samples, per question")
    if given.figure is not None:
        draw(rows, given.figure, given.title)


def attempts_of(run: Path) -> list[list[Episode]]:
    """Returns the attempts at each question of a run, in their order."""
    groups: dict[str, list[Episode]] = {}
    for episode in read_episodes(run / "episodes.jsonl", tokens=False):
        groups.setdefault(episode.question_id, []).append(episode)
    ordered = [sorted(group, key=lambda episode: episode.attempt) for group in groups.values()]
    if len({tuple(episode.attempt for episode in group) for group in ordered}) != 1:
        raise UsageError(f"{run}: its questions have different samples: finish it with --resume")
    return ordered


def rows_of(name: str, groups: Sequence[Sequence[Episode]], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Returns a row for each selection among the first n attempts, for each n."""
    rows = list[dict[str, Any]]()
    for n in (number for number in numbers if number <= len(groups[0])):
        right: dict[str, list[float]] = {}
        for group in groups:
            for selection, index in selected([Sampled.of(episode) for episode in group[:n]]).items():
                right.setdefault(selection, []).append(group[index].scores["em"])
        generated = np.mean([sum(episode.generated_tokens() for episode in group[:n]) for group in groups])
        read = np.mean([sum(call.start for e in group[:n] for call in e.calls[e.replayed :]) for group in groups])
        for selection, values in right.items():
            low, high = bootstrap_ci(values)
            row = {"run": name, "selection": selection, "samples": n, "generated": float(generated)}
            rows.append(row | {"read": float(read), "em": float(np.mean(values)), "low": low, "high": high})
    return rows


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws EM against generated tokens, a line for each run and selection by vote or value."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    for place, line in enumerate(dict.fromkeys((row["run"], row["selection"]) for row in rows)):
        if line[1] not in DRAWN:
            continue
        points = [row for row in rows if (row["run"], row["selection"]) == line]
        tokens, em = [row["generated"] for row in points], np.array([row["em"] for row in points])
        low, high = (np.array([row[side] for row in points]) for side in ("low", "high"))
        style = "--" if line[1] == "vote" else "-"
        label = f"{line[0]}, by {line[1]}"
        axes.errorbar(tokens, em, [em - low, high - em], fmt=f"o{style}", color=f"C{place}", capsize=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("generated tokens per question")
    axes.set_ylabel("EM")
    axes.set_title(title)
    axes.legend(loc="lower right")
    canvas.print_png(path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
