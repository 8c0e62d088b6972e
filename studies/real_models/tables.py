"""Tables and the picture of the study, from its records.

    python studies/real_models/tables.py [--records studies/real_models/records] [--figure FILE.png] [--json]

A contrast has as many seeds as both arms have in common. Its interval is over seeds and questions, and with one seed
over questions alone; it is resolved if that excludes 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from real_models import ARMS, CONTROLS

from searchgym.cli.output import emit, emit_rows, table
from searchgym.eval.compare import two_way_ci
from searchgym.eval.decomposition import HEAD, decompose

Records = Mapping[tuple[str, int], dict[str, Any]]
"""Records by arm and seed."""
CONTRASTS: Final = (
    ("main", "form", "real", None),
    ("main", "warm", "real", None),
    ("main", "untouched", "real", None),
    ("main", "warm", "generated", "2"),
    ("main", "form", "generated", "2"),
    ("main", "warm", "generated", None),
    ("comparisons", "form", "real", None),
    ("comparisons", "warm", "real", None),
    ("comparisons", "main", "real", None),
    ("comparisons", "untouched", "real", None),
    ("comparisons", "warm", "generated", "2"),
    ("demonstrations", "main", "generated", None),
    ("demonstrations", "main", "real", None),
)
"""Arm, arm that it is compared with, question sets, and hops of the questions (None: all)."""


def read_records(folder: Path) -> Records:
    """Returns the records in a folder."""
    records = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {(record["arm"], record["seed"]): record for record in records}


def rows_of(record: Mapping[str, Any], sets: str, control: str, hops: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns the rows of a control by set and question; `sets` is ``generated``, ``real`` or the name of a set."""
    rows: dict[str, dict[str, Any]] = {}
    for name, scored in record["scores"].items():
        set_name, _, of_control = name.partition(", ")
        matches = set_name == sets or (sets == "real" and set_name != "generated")
        if matches and of_control == control:
            rows |= {f"{set_name}/{id}": row for id, row in scored.items() if hops in (None, str(row.get("hops")))}
    return rows


def scores_of(records: Records, arm: str, sets: str, control: str, hops: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of an arm's seeds that have been scored."""
    found = (rows_of(record, sets, control, hops) for (name, _), record in sorted(records.items()) if name == arm)
    return [rows for rows in found if rows]


def arm_rows(records: Records) -> list[dict[str, Any]]:
    """Returns a row for each arm, control and set."""
    rows = []
    for arm in ARMS:
        for control in CONTROLS:
            for sets in ("generated", "HotpotQA", "2WikiMultihopQA"):
                seeds = scores_of(records, arm, sets, control)
                if not seeds:
                    continue
                row: dict[str, Any] = {"arm": arm, "control": control, "set": sets, "n": len(seeds[0])}
                row["em"] = round(mean_em(seeds), 3)
                row["by seed"] = [round(mean_em([rows]), 3) for rows in seeds]
                row["searches"] = round(float(np.mean([r.get("searches", 0) for s in seeds for r in s.values()])), 2)
                hops = sorted({str(r.get("hops")) for r in seeds[0].values()})
                by_hops = {h: scores_of(records, arm, sets, control, h) for h in hops}
                row["by hops"] = {h: round(mean_em(chosen), 3) for h, chosen in by_hops.items() if chosen}
                rows.append(row)
    return rows


def mean_em(seeds: Sequence[Mapping[str, Mapping[str, Any]]]) -> float:
    """Returns the mean EM over seeds and questions."""
    return float(np.mean([row["em"] for rows in seeds for row in rows.values()]))


def paired(records: Records, first: str, second: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the records of two arms by common seed; an arm that is not trained has one record for all seeds."""

    def of(arm: str) -> dict[int, dict[str, Any]]:
        return {seed: record for (name, seed), record in records.items() if name == arm}

    a, b = of(first), of(second)
    if ARMS[second] is None and b:
        b = dict.fromkeys(a, next(iter(b.values())))
    return [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]


def contrast_rows(records: Records) -> list[dict[str, Any]]:
    """Returns a row for each contrast of `CONTRASTS` that the records allow."""
    rows = []
    for first, second, sets, hops in CONTRASTS:
        pairs = [
            (rows_of(a, sets, "agent", hops), rows_of(b, sets, "agent", hops))
            for a, b in paired(records, first, second)
        ]
        ids = sorted(set.intersection(*(a.keys() & b.keys() for a, b in pairs))) if pairs else []
        if not ids:
            continue
        gaps = np.array([[a[id]["em"] - b[id]["em"] for id in ids] for a, b in pairs])
        low, high = two_way_ci(gaps)
        verdict = "higher" if low > 0 else "lower" if high < 0 else "not resolved"
        what = f"{first} less {second}, {sets}" + (f", {hops} hops" if hops else "")
        row = {"contrast": what, "seeds": len(pairs), "n": len(ids), "em": round(float(gaps.mean()), 3)}
        rows.append(row | {"low": round(low, 3), "high": round(high, 3), "verdict": verdict})
    return rows


def decompositions(records: Records) -> dict[str, Any]:
    """Returns the decomposition of each contrast over whole sets, by its name."""
    results = {}
    for first, second, sets, hops in CONTRASTS:
        pairs = [
            (rows_of(a, sets, "agent"), rows_of(b, sets, "agent"))
            for a, b in paired(records, first, second)
            if hops is None
        ]
        if pairs and all(a and b for a, b in pairs):
            results[f"{first} less {second}, {sets}"] = decompose([b for _, b in pairs], [a for a, _ in pairs])
    return results


PANELS: Final = {"main": "practice: chains of pages alone", "comparisons": "practice: chains and comparisons"}
"""Arms of the picture, with the titles of their panels."""


def draw(records: Records, path: Path) -> None:
    """Draws the pass rate of each kind of question by step, with the range over seeds, one panel for each arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = {
        arm: [record["training"]["curves"] for (name, _), record in sorted(records.items()) if name == arm]
        for arm in PANELS
    }
    drawn = {arm: rows for arm, rows in curves.items() if rows}
    figure = Figure(figsize=(5 * len(drawn), 3.8), layout="constrained")
    for place, (arm, of_seeds) in enumerate(drawn.items(), 1):
        axes = figure.add_subplot(1, len(drawn), place, xlabel="step", ylim=(0, 1))
        axes.set_title(f"{PANELS[arm]}, seeds: {len(of_seeds)}", fontsize="medium")
        prefix = "curriculum/pass_rate/"
        for name in sorted({name for rows in of_seeds for row in rows for name in row if name.startswith(prefix)}):
            steps = sorted({row["step"] for rows in of_seeds for row in rows if name in row})
            by_step = [
                [r[name] for rows in of_seeds for r in rows if r["step"] == step and name in r] for step in steps
            ]
            kind = name.removeprefix(prefix)
            label = f"chain of {kind} pages" if kind.isdigit() else kind
            (line,) = axes.plot(steps, [float(np.mean(values)) for values in by_step], label=label)
            low, high = list(map(min, by_step)), list(map(max, by_step))
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2)
        axes.set_ylabel("EM of the last sampled groups" if place == 1 else "")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.suptitle("How much of its practice does a 0.5B model answer? Mean and range over seeds")
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]


def main() -> None:
    """Prints the tables, and draws the picture if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path(__file__).parent / "records")
    parser.add_argument("--figure", type=Path, help="PNG file to draw")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    records = read_records(given.records)
    if not records:
        parser.error(f"{given.records} holds no record: run real_models.py first")
    parts = decompositions(records)
    if given.json:
        terms = {name: {head: term.mean for head, term in part.terms.items()} for name, part in parts.items()}
        emit({"results": arm_rows(records), "contrasts": contrast_rows(records), "decompositions": terms}, True)
    else:
        emit_rows(arm_rows(records), False, "arms")
        emit_rows(contrast_rows(records), False, "contrasts")
        for name, part in parts.items():
            table(HEAD, part.rows(), f"{name}: {part.scope}")
    if given.figure:
        draw(records, given.figure)


if __name__ == "__main__":
    main()
