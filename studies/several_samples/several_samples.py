"""Accuracy against tokens at test time: samples that are selected by vote or value, guided, or revised.

    python studies/several_samples/several_samples.py NAME=RUN ... [--samples 1 2 4 8] [--figure FILE] [--json]

RUN is the folder of `searchgym eval --samples N`; README.md has the commands. The questions of runs with the same NAME
count together. For each number n, one of the first n samples of a question is selected, and the tokens of all n are
added up: those that the model generated, and those that it read. EM has a 95 % bootstrap interval over questions. Best
of the largest n by value, of the first run, is the baseline: a second table has the paired differences from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit, emit_rows
from searchgym.errors import UsageError
from searchgym.eval import bootstrap_ci
from searchgym.records import Episode
from searchgym.rollout import read_episodes
from searchgym.scoring.selection import Sampled, selected

DRAWN: Final = ("vote", "value")
"""Selections that the picture shows."""
BASELINE: Final = "value"
"""Selection of the first run that others are compared with."""


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
    compared = differences({name: scored(groups, max(given.samples)) for name, groups in runs.items()})
    if given.json:
        emit({"results": rows, "differences": compared}, True)
    else:
        emit_rows(rows, False, "results", "EM of the selected sample, and tokens of all samples, per question")
        emit_rows(compared, False, "differences", f"EM less that of {next(iter(runs))} by {BASELINE}, same questions")
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


def scored(groups: Sequence[Sequence[Episode]], n: int) -> dict[str, dict[str, float]]:
    """Returns the EM of the sample that each selection takes among the first n attempts, by question id."""
    right: dict[str, dict[str, float]] = {}
    for group in groups:
        for selection, index in selected([Sampled.of(episode) for episode in group[:n]]).items():
            right.setdefault(selection, {})[group[0].question_id] = group[index].scores["em"]
    return right


def differences(runs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Returns the paired differences in EM of each run and selection from the first run's best of n by value.

    Args:
        runs: EM by name of the run, selection and question id.
    """
    first = next(iter(runs.values()))
    if BASELINE not in first:
        return []
    rows = list[dict[str, Any]]()
    for name, selections in runs.items():
        for selection, em in selections.items():
            if em.keys() != first[BASELINE].keys():
                raise UsageError(f"{name} asks other questions than the first run")
            paired = [em[question] - first[BASELINE][question] for question in sorted(em)]
            low, high = bootstrap_ci(paired)
            rows.append({"run": name, "selection": selection, "difference": float(np.mean(paired))})
            rows[-1] |= {"low": low, "high": high}
    return rows


def rows_of(name: str, groups: Sequence[Sequence[Episode]], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Returns a row for each selection among the first n attempts, for each n."""
    rows = list[dict[str, Any]]()
    for n in (number for number in numbers if number <= len(groups[0])):
        generated = np.mean([sum(episode.generated_tokens() for episode in group[:n]) for group in groups])
        read = np.mean([sum(call.start for e in group[:n] for call in e.calls[e.replayed :]) for group in groups])
        for selection, em in scored(groups, n).items():
            values = list(em.values())
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
