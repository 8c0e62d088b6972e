"""The ``compare`` command: runs on the same questions side by side, with paired intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.output import Json, emit, say, show, table
from searchgym.errors import UsageError

if TYPE_CHECKING:
    from searchgym.eval.decomposition import Decomposition
    from searchgym.eval.judged.drift import Drift
    from searchgym.eval.run_folder import FinishedRun
    from searchgym.scoring.efficiency import Rates

SPENT: Final = "evidence against what was spent: the larger the area, the cheaper"
"""Title of the table of areas."""


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders: two or more on the same questions, or of a suite.")],
    metric: Annotated[str, typer.Option(help="Score to compare: em, f1, judged or searches.")] = "em",
    questions: Annotated[int, typer.Option(min=0, help="Questions to list in which the runs differ.")] = 5,
    cost: Annotated[
        str | None,
        typer.Option(help="Stated costs by name, as YAML: '{price: {read: 1.0e-7, written: 4.0e-7, search: 0.005}}'."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare runs on the same questions.

    Each run is compared with the first, question by question: differences with paired 95 % intervals. A difference in
    EM is decomposed: how much of it comes from answering at all, searching, reading, memory and wording. Evidence is
    compared with the tokens and searches that were spent for it, and with stated costs. A difference in judged is
    corrected for the bias of judges that disagree on the calibration sample.
    """
    from searchgym.eval.efficiency import read_costs

    if len(runs) < 2:
        raise UsageError("compare at least two runs")
    costs = {} if cost is None else read_costs(cost)
    results = [_compared(part, folders, metric, questions, costs) for part, folders in _parts(runs).items()]
    if json:
        emit({"metric": metric, "parts": list(map(_plain, results))}, True)
        return
    for result in results:
        head = ["run", "agent", "n", metric, "95 % interval", "less the first", "95 % interval"]
        head += ["better", "worse", "verdict"]
        table(head, [_cells(row) for row in result["runs"]], result["part"])
        for note in result["notes"]:
            say(f"note: {note}")
        for row in result["runs"]:
            _print_decomposition(row["run"], row["decomposition"])
        if result["evidence"]:
            table(list(result["evidence"][0]), [[show(v) for v in row.values()] for row in result["evidence"]], SPENT)
        listed = [[q["id"], q["question"], *q["answers"]] for q in result["questions"]]
        if listed:
            names = [f"answer {number}" for number in range(1, len(runs) + 1)]
            table(("question", metric, *names), listed, "questions in which the runs differ")


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of `_compared` as plain data."""
    import dataclasses

    rows = []
    for row in result["runs"]:
        part = row["decomposition"]
        rows.append(row | {"decomposition": None if part is None else dataclasses.asdict(part)})
    return result | {"runs": rows}


def _print_decomposition(run: str, part: Decomposition | None) -> None:
    """Prints where the difference in EM of a run to the first comes from."""
    from searchgym.eval.decomposition import HEAD
    from searchgym.eval.report.blocks import filled

    if part is not None:
        cells = filled(HEAD, part.rows())
        table(cells.head, cells.rows, f"EM of {run} less the first by cause\n({part.scope})")


def _cells(row: dict[str, Any]) -> list[str]:
    """Returns the cells of one run."""
    mean = row["interval"] or []
    cells = [row["run"], row["agent"], str(row["n"]), show(row["mean"]), " – ".join(map(show, mean))]
    gap = row["difference"]
    if gap is None:
        return [*cells, "", "", "", "", "the first"]
    figures = f"{gap['mean']:+.4f}", f"{gap['low']:+.4f} – {gap['high']:+.4f}", str(gap["wins"]), str(gap["losses"])
    return [*cells, *figures, gap["verdict"]]


def _parts(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Returns name of the part to run folders; runs of suites have a part for each that all of them hold."""
    from searchgym.eval.run_folder import read_suite

    suites = [read_suite(run) for run in runs]
    parts_of_runs = [suite[1] for suite in suites if suite is not None]
    if not parts_of_runs:
        return {"": list(runs)}
    if len(parts_of_runs) < len(runs):
        raise UsageError("some of these are runs of a suite and some are not: name the part's folder in the suite's")
    shared = [part for part in parts_of_runs[0] if all(part in other for other in parts_of_runs)]
    if not shared:
        raise UsageError("these runs of suites have no part in common")
    return {part: [run / part for run in runs] for part in shared}


def _compared(
    part: str, folders: Sequence[Path], metric: str, listed: int, costs: Mapping[str, Rates]
) -> dict[str, Any]:
    """Returns runs on one set of questions, compared with the first, and questions in which they differ."""
    import dataclasses

    from searchgym.eval.compare import check_comparable, difference
    from searchgym.eval.decomposition import decompose_runs
    from searchgym.eval.efficiency import with_costs
    from searchgym.eval.judged.drift import METRIC, compare_all, corrected_difference, judge_notes, read_judgements
    from searchgym.eval.run_folder import read_finished
    from searchgym.eval.scores import bootstrap_ci
    from searchgym.scoring.efficiency import LIMITS

    runs = [read_finished(folder) for folder in folders]
    notes = check_comparable(runs)
    drifts = compare_all(read_judgements(folders, runs)) if metric == METRIC else []
    notes += _drift_notes(runs, drifts) if drifts else judge_notes(folders)
    if costs:
        runs = [dataclasses.replace(run, rows=with_costs(run.rows, costs)) for run in runs]
    parts, problems = decompose_runs(runs) if metric == "em" else ({}, [])
    rows = []
    for number, run in enumerate(runs):
        values = [row[metric] for _, row in sorted(run.rows.items()) if metric in row]
        gap = None
        if number:
            plain = difference(run.rows, runs[0].rows, metric)
            paired = corrected_difference(run, runs[0], drifts[number - 1]) if drifts else plain
            gap = dataclasses.asdict(paired) | {"verdict": paired.verdict}
        mean = sum(values) / len(values) if values else None
        interval = bootstrap_ci(values) if values else None
        labels = {"run": run.name, "agent": run.record.get("agent", ""), "n": len(values)}
        gaps = {"difference": gap, "decomposition": parts.get(number)}
        rows.append(labels | {"mean": mean, "interval": interval} | gaps)
    unlike: list[dict[str, Any]] = []
    for id in sorted(runs[0].rows):
        scores = [run.rows[id].get(metric) for run in runs]
        if len(unlike) < listed and len(set(scores)) > 1:
            answers = [str((run.rows[id].get("answers") or [None])[0])[:60] for run in runs]
            unlike.append({"id": id, "question": " ".join(map(show, scores)), "answers": answers})
    evidence = _evidence(runs, [*LIMITS, *costs])
    result = {"part": part, "runs": rows, "notes": notes + problems, "evidence": evidence, "questions": unlike}
    return result | ({"judges": [drift.as_dict() for drift in drifts]} if drifts else {})


def _drift_notes(runs: Sequence[FinishedRun], drifts: Sequence[Drift]) -> list[str]:
    """Returns a sentence on the judge of each run but the first, against that of the first."""
    from searchgym.eval.compare import difference
    from searchgym.eval.judged.drift import METRIC

    notes = []
    for run, drift in zip(runs[1:], drifts, strict=True):
        plain = difference(run.rows, runs[0].rows, METRIC)
        end = f". The difference is corrected for this bias; without it is {plain}" if drift.unlike else ""
        notes.append(f"{run.name} and {runs[0].name}: {drift}{end}")
    return notes


def _evidence(runs: Sequence[FinishedRun], units: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each unit and run: the area under the evidence recall, and the difference to the first run."""
    from searchgym.eval.compare import difference
    from searchgym.eval.efficiency import BY
    from searchgym.eval.scores import bootstrap_ci

    rows = []
    for unit in units:
        measured = [run for run in runs if any(f"{BY}{unit}" in row for row in run.rows.values())]
        for run in measured if len(measured) == len(runs) else ():
            values = [row[f"{BY}{unit}"] for _, row in sorted(run.rows.items()) if f"{BY}{unit}" in row]
            less = "" if run is runs[0] else str(difference(run.rows, runs[0].rows, f"{BY}{unit}"))
            low, high = bootstrap_ci(values)
            area = f"{sum(values) / len(values):.4f} ({low:.3f} – {high:.3f})"
            rows.append({"evidence by": unit, "run": run.name, "area (95 %)": area, "less the first (95 %)": less})
    return rows
