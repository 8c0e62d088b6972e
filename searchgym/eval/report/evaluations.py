"""The sections of a report about evaluations: for each set of questions a sentence, a table and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.eval.compare import SAME, check_comparable, difference
from searchgym.eval.decomposition import HEAD as TERM_HEAD
from searchgym.eval.decomposition import decompose_runs
from searchgym.eval.report.blocks import Block, Heading, Items, Picture, TextBlock, between, filled, finite, number
from searchgym.eval.report.episodes import cut
from searchgym.eval.report.figures import MAX_RUNS, Points, Series, bars, panels, scatter
from searchgym.eval.report.runs import RunData
from searchgym.eval.scores import bootstrap_ci

HEAD: Final = (
    "#", "run", "EM (95 %)", "EM minus first run (95 %)", "F1 (95 %)", "searches", "tokens written", "tokens read",
    "gold pages found", "legal", "questions", "agent", "models",
)  # fmt: skip
"""Heads of the table."""
F1: Final = HEAD.index("F1 (95 %)")
ORACLES: Final = "Oracles read the gold titles or answers: their scores are upper bounds, not results."
"""Paragraph above the table of oracles."""
LONGEST_NAME: Final = 300
"""Maximum number of characters of a name in a run's record that a page shows."""
MOST_TURNS: Final = 100
"""Maximum number of turns in a figure."""


def groups_by_questions(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Returns evaluations grouped by their questions, in order of first runs; oracles come last in a group."""
    groups: dict[str, list[RunData]] = {}
    for run in sorted(runs, key=lambda run: run.is_oracle):
        groups.setdefault(json.dumps([run.record.get(name) for name in SAME]), []).append(run)
    return list(groups.values())


def evaluation_outcome(runs: Sequence[RunData]) -> str:
    """Returns one sentence on the EM of the best run, compared with the first, and the date; empty without an EM.

    Args:
        runs: Evaluations on the same questions. Oracles are left out.
    """
    scored = [run for run in runs if not run.is_oracle and finite(run.scores.get("em")) is not None]
    if not scored:
        return ""
    best, first = max(scored, key=lambda run: run.scores["em"]), scored[0]
    count, interval = number(best.scores.get("n"), 0), between(best.scores.get("em_ci95"))
    env = cut(str(best.record.get("env") or "an unknown environment"), LONGEST_NAME)
    text = f"EM on {f'{count} ' if count else ''}question{'s' * (count != '1')} of {env}: "
    text += f"“{cut(best.name, LONGEST_NAME)}” {number(best.scores['em'])}"
    text += f" (95 % interval {interval})" if interval else ""
    text += f", the best of {len(scored)} runs" if len(scored) > 1 else ""
    if best is not first:
        text += f"; “{cut(first.name, LONGEST_NAME)}”, the first run, {number(first.scores['em'])}"
        text += f"; difference {difference(best.rows, first.rows)}" if best.rows and first.rows else ""
    days = sorted({run.date for run in scored})
    return f"{text}. Date: {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}."


def evaluation_blocks(groups: Sequence[Sequence[RunData]]) -> list[Block]:
    """Returns the blocks about evaluations: one section for each group of runs on the same questions."""
    return [block for runs in groups for block in _section(runs)]


def _section(runs: Sequence[RunData]) -> list[Block]:
    """Returns the section about runs on the same questions."""
    first = runs[0].record
    facts = [cut(str(first[name]), LONGEST_NAME) for name in ("dataset", "split", "scorer") if first.get(name)]
    blocks: list[Block] = [Heading(cut(str(first.get("env") or "unknown environment"), LONGEST_NAME))]
    gaps, notes = _gaps(runs)
    rows = [_cells(number, run, gaps.get(number, "")) for number, run in enumerate(runs, start=1)]
    ems = [row[HEAD.index("EM (95 %)")] for row in rows]
    repeats = any(ems) and [row[F1] for row in rows] == ems
    if repeats:
        rows = [[*row[:F1], "", *row[F1 + 1 :]] for row in rows]
    if facts:
        f1 = " F1 equals EM in every run." if repeats else ""
        blocks.append(TextBlock([f"Questions and scorer: {', '.join(facts)}.{f1}"]))
    results = [row for row, run in zip(rows, runs, strict=True) if not run.is_oracle]
    oracles = [row for row, run in zip(rows, runs, strict=True) if run.is_oracle]
    if results:
        blocks.append(filled(HEAD, results))
    if oracles:
        blocks += [TextBlock([ORACLES]), filled(HEAD, oracles)]
    if notes:
        blocks.append(Items([("", [note]) for note in notes]))
    blocks += _by_cause([run for run in runs if run.rows][:MAX_RUNS])
    if len(runs) > MAX_RUNS:
        blocks.append(TextBlock([f"The figures show the first {MAX_RUNS} of {len(runs)} runs."]))
    first_runs = runs[:MAX_RUNS]
    pictures = (
        cost_picture({run.name: run.scores for run in runs}),
        _hops(first_runs),
        _recall(first_runs),
        _efficiency(first_runs),
    )
    blocks += [picture for picture in pictures if picture is not None]
    return blocks


def _cells(row: int, run: RunData, gap: str) -> list[str]:
    """Returns the cells of one run."""
    scores, record = run.scores, run.record
    models = record.get("models")
    entries = models.values() if isinstance(models, dict) else ()
    names = dict.fromkeys(str(entry[0]) for entry in entries if isinstance(entry, list) and entry)
    em, f1 = (_with_interval(scores, name) for name in ("em", "f1"))
    digits = {"searches": 2, "response_tokens": 0, "read_tokens": 0, "gold_found": 3, "legal": 3, "n": 0}
    numbers = [number(scores.get(name), count) for name, count in digits.items()]
    texts = [cut(str(record.get("agent", "")), LONGEST_NAME), cut(", ".join(names), LONGEST_NAME)]
    return [str(row), run.name, em, gap, f1, *numbers, *texts]


def _with_interval(scores: Mapping[str, Any], name: str) -> str:
    """Formats a score with its interval, if it has one."""
    interval = between(scores.get(f"{name}_ci95"))
    return number(scores.get(name)) + (f" ({interval})" if interval else "")


def _gaps(runs: Sequence[RunData]) -> tuple[dict[int, str], list[str]]:
    """Returns the differences to the first run that has scores of questions, by row, and other differences in words.

    Raises:
        UsageError: Two runs on the same questions have scores of different ones.
    """
    scored = [(row, run) for row, run in enumerate(runs, start=1) if run.rows]
    if len(scored) < 2:
        return {}, []
    notes, first = check_comparable([run for _, run in scored]), scored[0][1]
    gaps = {
        row: str(difference(run.rows, first.rows))
        for row, run in scored[1:]
        if any("em" in scores for scores in run.rows.values())
    }
    return gaps, notes


def _by_cause(runs: Sequence[RunData]) -> list[Block]:
    """Returns a table of where the difference in EM of each run to the first comes from, or why there is none."""
    if len(runs) < 2:
        return []
    parts, notes = decompose_runs(runs)
    blocks: list[Block] = []
    if parts:
        scope = next(iter(parts.values())).scope
        rows = [[runs[index].name, *cells] for index, part in parts.items() for cells in part.rows()]
        blocks += [TextBlock([f"EM minus first run by cause ({scope}):"]), filled(("run", *TERM_HEAD), rows)]
    return [*blocks, Items([("", [note]) for note in notes])] if notes else blocks


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
    groups: list[dict[str, Points]] = [{} for _ in runs]
    for level in hops[:MAX_RUNS]:
        count = max(sum(row.get("hops") == level for row in run.rows.values()) for run in runs)
        label = f"{level} hop{'' if level == '1' else 's'}\n{count} questions"
        for run, bar in zip(runs, groups, strict=True):  # in order of ids
            values = [row["em"] for _, row in sorted(run.rows.items()) if row.get("hops") == level and "em" in row]
            low, high = bootstrap_ci(values) if values else (0.0, 0.0)
            bar[label] = [(0.0, math.fsum(values) / len(values), low, high)] if values else []
    if len(hops) < 2:
        return None
    series = [Series(run.name, bar) for run, bar in zip(runs, groups, strict=True)]
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
                interval = bounds[turn] if isinstance(bounds, list) and len(bounds) > turn else None
                points.append((float(turn + 1), value, *_ends(interval, value)))
        series.append(Series(run.name, {"share of gold pages found up to a turn": points}))
    caption = "Retrieval by turn: share of the gold titles among all hits so far, with 95 % intervals over questions."
    return panels(series, "turn", "Share of gold titles found by turn", caption, integer=True)


def _efficiency(runs: Sequence[RunData]) -> Picture | None:
    """Draws the share of gold pages read within a budget of context tokens, and of searches."""
    series = []
    for run in runs:
        curves = run.scores.get("evidence_curve")
        lines: dict[str, Points] = {}
        for unit, curve in curves.items() if isinstance(curves, dict) else ():
            pairs = [tuple(map(finite, pair)) for pair in curve if isinstance(pair, list) and len(pair) == 2]
            lines[f"share of gold pages read within this many {unit}"] = [
                (x, y, y, y) for x, y in pairs if x is not None and y is not None
            ]
        series.append(Series(run.name, lines))
    caption = (
        "Evidence against what was spent: share of the gold pages that were read within a budget, mean over questions. "
        "The line that rises first finds its evidence cheapest."
    )
    return panels(series, "budget", "Share of gold pages read by budget", caption, doubling=True)


def _ends(bounds: object, value: float) -> tuple[float, float]:
    """Returns the ends of an interval; the value itself without one."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return value, value
    low, high = map(finite, bounds)
    return (value if low is None else low), (value if high is None else high)
