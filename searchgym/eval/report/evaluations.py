"""The part of a report about evaluations: one table, and figures, for each set of questions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.eval.compare import SAME, check_comparable, difference
from searchgym.eval.report.blocks import Block, Heading, Items, Picture, TextBlock, between, filled, finite, number
from searchgym.eval.report.episodes import cut
from searchgym.eval.report.figures import MAX_RUNS, Points, Series, bars, panels, scatter
from searchgym.eval.report.runs import RunData
from searchgym.eval.scores import bootstrap_ci

HEAD: Final = (
    "#", "run", "agent", "models", "questions", "EM (95 %)", "F1 (95 %)", "searches", "tokens written", "tokens read",
    "gold pages found", "legal", "EM less the first (95 %)",
)  # fmt: skip
"""Heads of the table."""
LONGEST_NAME: Final = 300
"""Maximum number of characters of a name in a run's record that a page shows."""
MOST_TURNS: Final = 100
"""Maximum number of turns in a figure."""


def evaluation_blocks(runs: Sequence[RunData]) -> list[Block]:
    """Returns the blocks about evaluations: a section for each set of questions, in order of its first run."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(json.dumps([run.record.get(name) for name in SAME]), []).append(run)
    return [block for alike in groups.values() for block in _section(alike)]


def _section(runs: Sequence[RunData]) -> list[Block]:
    """Returns the section about runs on the same questions."""
    first = runs[0].record
    told = [cut(str(first[name]), LONGEST_NAME) for name in ("dataset", "split", "scorer") if first.get(name)]
    blocks: list[Block] = [Heading(cut(str(first.get("env") or "unknown environment"), LONGEST_NAME))]
    if told:
        blocks.append(TextBlock([f"Questions and scorer: {', '.join(told)}."]))
    gaps, notes = _gaps(runs)
    rows = [_cells(place, run, gaps.get(place, "")) for place, run in enumerate(runs, start=1)]
    blocks.append(filled(HEAD, rows))
    if notes:
        blocks.append(Items([("", [note]) for note in notes]))
    if len(runs) > MAX_RUNS:
        blocks.append(TextBlock([f"The figures show the first {MAX_RUNS} of {len(runs)} runs."]))
    pictures = (cost_picture({run.name: run.scores for run in runs}), _hops(runs[:MAX_RUNS]), _recall(runs[:MAX_RUNS]))
    blocks += [picture for picture in pictures if picture is not None]
    return blocks


def _cells(place: int, run: RunData, gap: str) -> list[str]:
    """Returns the cells of one run."""
    scores, record = run.scores, run.record
    models = record.get("models")
    entries = models.values() if isinstance(models, dict) else ()
    named = dict.fromkeys(str(entry[0]) for entry in entries if isinstance(entry, list) and entry)
    cells = [str(place), run.name, cut(str(record.get("agent", "")), LONGEST_NAME), cut(", ".join(named), LONGEST_NAME)]
    cells.append(number(scores.get("n"), 0))
    for name in ("em", "f1"):
        bounds = between(scores.get(f"{name}_ci95"))
        cells.append(number(scores.get(name)) + (f" ({bounds})" if bounds else ""))
    digits = {"searches": 2, "response_tokens": 0, "read_tokens": 0, "gold_found": 3, "legal": 3}
    return [*cells, *(number(scores.get(name), count) for name, count in digits.items()), gap]


def _gaps(runs: Sequence[RunData]) -> tuple[dict[int, str], list[str]]:
    """Returns the differences to the first run that has scores of questions, by place, and what else differs.

    Raises:
        UsageError: Two runs on the same questions have scores of different ones.
    """
    known = [(place, run) for place, run in enumerate(runs, start=1) if run.rows]
    if len(known) < 2:
        return {}, []
    notes, first = check_comparable([run for _, run in known]), known[0][1]
    gaps = {
        place: str(difference(run.rows, first.rows))
        for place, run in known[1:]
        if any("em" in row for row in run.rows.values())
    }
    return gaps, notes


# -- figures -------------------------------------------------------------------------------------------------------


def cost_picture(runs: Mapping[str, Mapping[str, Any]]) -> Picture | None:
    """Draws EM against searches and against tokens; None if no run has both a score and a cost.

    Args:
        runs: Name of each run, at most `MAX_RUNS` of which are drawn, to its scores as in ``scores.json``.
    """
    labels = {"searches": "searches per question", "tokens": "tokens written and read per question"}
    series = []
    for name, scores in list(runs.items())[:MAX_RUNS]:
        em, costs = finite(scores.get("em")), {"searches": finite(scores.get("searches"))}
        written, read = finite(scores.get("response_tokens")), finite(scores.get("read_tokens"))
        costs["tokens"] = None if written is None or read is None else written + read
        points = {
            panel: [(cost, em, *_ends(scores.get("em_ci95"), em))]
            for panel, cost in costs.items()
            if cost is not None and em is not None
        }
        series.append(Series(name, points))
    caption = (
        "Accuracy against cost: exact match with its 95 % interval over questions, by the mean cost of a question."
    )
    return scatter(series, "EM of each run against searches and tokens", caption, labels)


def _hops(runs: Sequence[RunData]) -> Picture | None:
    """Draws EM by the number of hops, where the questions differ in it."""
    hops = sorted({str(row["hops"]) for run in runs for row in run.rows.values() if row.get("hops") is not None})
    shown: list[dict[str, Points]] = [{} for _ in runs]
    for own in hops[:MAX_RUNS]:
        count = max(sum(row.get("hops") == own for row in run.rows.values()) for run in runs)
        label = f"{own} hop{'' if own == '1' else 's'}\n{count} questions"
        for run, bar in zip(runs, shown, strict=True):  # in order of ids
            values = [row["em"] for _, row in sorted(run.rows.items()) if row.get("hops") == own and "em" in row]
            low, high = bootstrap_ci(values) if values else (0.0, 0.0)
            bar[label] = [(0.0, math.fsum(values) / len(values), low, high)] if values else []
    if len(hops) < 2:
        return None
    series = [Series(run.name, bar) for run, bar in zip(runs, shown, strict=True)]
    caption = "Exact match by the number of hops of the question, with 95 % bootstrap intervals over questions."
    return bars(series, "EM of each run by number of hops", caption)


def _recall(runs: Sequence[RunData]) -> Picture | None:
    """Draws the share of gold titles among all hits up to each turn, of the runs in which it was measured."""
    series = []
    for run in runs:
        means, bounds = run.scores.get("title_recall"), run.scores.get("title_recall_ci95")
        points = []
        for turn, mean in enumerate(means[:MOST_TURNS] if isinstance(means, list) else ()):
            if (value := finite(mean)) is not None:
                own = bounds[turn] if isinstance(bounds, list) and len(bounds) > turn else None
                points.append((float(turn + 1), value, *_ends(own, value)))
        series.append(Series(run.name, {"share of gold pages found up to a turn": points}))
    caption = "Retrieval by turn: share of the gold titles among all hits so far, with 95 % intervals over questions."
    return panels(series, "turn", "Share of gold titles found by turn", caption, integer=True)


def _ends(bounds: object, value: float) -> tuple[float, float]:
    """Returns the ends of an interval; the value itself where there is none."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return value, value
    low, high = map(finite, bounds)
    return (value if low is None else low), (value if high is None else high)
