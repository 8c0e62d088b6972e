"""Accuracy against tokens at test time: samples that are selected by vote or value, guided, or revised.

    python studies/several_samples/several_samples.py SET/WAY=RUN ... [--samples 1 2 4 8] [--figure FILE] [--json]

RUN is the folder of `searchgym eval --samples N`; README.md has the commands. SET names the questions and gets a panel
of the picture, WAY how they were sampled. The questions of runs with the same name count together.

For each number n, one of the first n samples of a question is selected, and the tokens of all n are added up: those
that the model generated, and those that it read. EM has a 95 % bootstrap interval over questions. Best of the largest n
by value, of the first way of a set, is its baseline: a second table has the differences from it. A third one correlates
values with EM, over all samples and over those of the same question.
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
from searchgym.scoring.selection import VALUE, Sampled, selected

DRAWN: Final = ("vote", "value")
"""Selections that the picture shows."""
BASELINE: Final = "value"
"""Selection of the first run that others are compared with."""


def main() -> None:
    """Prints a row per run, selection and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="SET/WAY=RUN")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--figure", type=Path, help="PNG file to draw")
    parser.add_argument("--title", default="At equal tokens, which way to use several samples is right most often?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    runs: dict[str, list[list[Episode]]] = {}
    for name, _, folder in (run.partition("=") for run in given.runs):
        runs.setdefault(name, []).extend(attempts_of(Path(folder)))
    rows = [row for name, groups in runs.items() for row in rows_of(name, groups, given.samples)]
    last = {name: scored(groups, max(given.samples)) for name, groups in runs.items()}
    sets = dict.fromkeys(name.partition("/")[0] for name in runs)
    compared = [row for each in sets for row in differences({n: last[n] for n in last if n.partition("/")[0] == each})]
    valued = [row for name, groups in runs.items() for row in correlations(name, groups)]
    if given.json:
        emit({"results": rows, "differences": compared, "values": valued}, True)
    else:
        emit_rows(rows, False, "results", "EM of the selected sample, and tokens of all samples, per question")
        emit_rows(compared, False, "differences", f"EM less that of the set's first way by {BASELINE}, paired")
        emit_rows(valued, False, "values", "correlation of a sample's value and its EM")
    if given.figure is not None:
        draw(rows, list(sets), given.figure, given.title)


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


def correlations(name: str, groups: Sequence[Sequence[Episode]]) -> list[dict[str, Any]]:
    """Returns a row with the correlations of value and EM, over all samples and within questions; none without values.

    Within questions, the means of a question are deducted from both.
    """
    if not all(VALUE in episode.notes for group in groups for episode in group):
        return []
    values = np.array([[float(episode.notes[VALUE]) for episode in group] for group in groups])
    em = np.array([[episode.scores["em"] for episode in group] for group in groups])
    within = (table - table.mean(axis=1, keepdims=True) for table in (values, em))
    row = {"run": name, "all": float(np.corrcoef(values.ravel(), em.ravel())[0, 1])}
    row["same question"] = float(np.corrcoef(*(table.ravel() for table in within))[0, 1])
    return [row | {"deviation of values": float(values.std())}]


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


def draw(rows: Sequence[Mapping[str, Any]], sets: Sequence[str], path: Path, title: str) -> None:
    """Draws EM against generated tokens: a panel for each set, a line for each way and selection by vote or value."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(sets), 4.5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for panel, (name, axes) in enumerate(zip(sets, figure.subplots(1, len(sets), squeeze=False)[0], strict=True)):
        drawn = [row for row in rows if row["run"].partition("/")[0] == name and row["selection"] in DRAWN]
        for way in dict.fromkeys((row["run"], row["selection"]) for row in drawn):
            points = [row for row in drawn if (row["run"], row["selection"]) == way]
            tokens, em = [row["generated"] for row in points], np.array([row["em"] for row in points])
            low, high = (np.array([row[side] for row in points]) for side in ("low", "high"))
            color = f"C{list(dict.fromkeys(row['run'] for row in drawn)).index(way[0])}"
            style, label = "--" if way[1] == "vote" else "-", f"{way[0].partition('/')[2]}, by {way[1]}"
            axes.errorbar(tokens, em, [em - low, high - em], fmt=f"o{style}", color=color, capsize=3, label=label)
        axes.set(title=name, xlabel="generated tokens per question", ylabel="" if panel else "EM")
        axes.legend(loc="best")
    figure.suptitle(title)
    canvas.print_png(path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
