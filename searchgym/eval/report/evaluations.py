"""The part of a report about evaluations: one table, and figures, for each set of questions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.eval.compare import SAME, check_comparable, difference
from searchgym.eval.report.blocks import Block, Heading, Items, Picture, Text, between, filled, finite, number
from searchgym.eval.report.episodes import cut
from searchgym.eval.report.figures import MOST, Points, Series, bars, panels, scatter
from searchgym.eval.report.runs import RunData
from searchgym.eval.run_folder import FinishedRun
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
        blocks.append(Text([f"Questions and scorer: {', '.join(told)}."]))
    gaps, notes = _gaps(runs)
    rows = [_cells(place, run, gaps.get(place, "")) for place, run in enumerate(runs, start=1)]
    blocks.append(filled(HEAD, rows))
    if notes:
        blocks.append(Items([("", [note]) for note in notes]))
    if len(runs) > MOST:
        blocks.append(Text([f"The figures show the first {MOST} of {len(runs)} runs."]))
    pictures = (cost_picture({run.name: run.scores for run in runs}), _hops(runs[:MOST]), _recall(runs[:MOST]))
    blocks += [picture for picture in pictures if picture is not None]
    return blocks


def _cells(place: int, run: RunData, gap: str) -> list[str]:
    """Returns the cells of one run."""
    scores = run.scores
    models = run.record.get("models")
    named = (
        [entry[0] for entry in models.values() if isinstance(entry, list) and entry] if isinstance(models, dict) else []
    )
    return [
        str(place),
        run.name,
        cut(str(run.record.get("agent", "")), LONGEST_NAME),
        cut(", ".join(dict.fromkeys(map(str, named))), LONGEST_NAME),
        number(scores.get("n"), 0),
        *(_with_interval(scores, name) for name in ("em", "f1")),
        number(scores.get("searches"), 2),
        number(scores.get("response_tokens"), 0),
        number(scores.get("read_tokens"), 0),
        number(scores.get("gold_found")),
        number(scores.get("legal")),
        gap,
    ]


def _with_interval(scores: Mapping[str, Any], name: str) -> str:
    """Formats a score with its interval, as far as they are known."""
    bounds = between(scores.get(f"{name}_ci95"))
    return number(scores.get(name)) + (f" ({bounds})" if bounds else "")


def _gaps(runs: Sequence[RunData]) -> tuple[dict[int, str], list[str]]:
    """Returns the differences to the first run that has scores of questions, by place, and what else differs.

    Raises:
        UsageError: Two runs on the same questions have scores of different ones.
    """
    numbered = enumerate(runs, start=1)
    known = [(place, FinishedRun(run.name, run.record, run.rows, run.scores)) for place, run in numbered if run.rows]
    if len(known) < 2:
        return {}, []
    (_, first), *others = known
    notes = check_comparable([run for _, run in known])
    gaps: dict[int, str] = {}
    for place, run in others:
        if any("em" in row for row in run.rows.values()):
            found = difference(run.rows, first.rows)
            told = f", {found.verdict}" if found.verdict == "not distinguishable" else ""
            gaps[place] = f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f}){told}"
    return gaps, notes


# -- figures -------------------------------------------------------------------------------------------------------


def cost_picture(runs: Mapping[str, Mapping[str, Any]]) -> Picture | None:
    """Draws EM against searches and against tokens; None if no run has both a score and a cost.

    Args:
        runs: Name of each run, at most `MOST` of which are drawn, to its scores as in ``scores.json``.
    """
    labels = {"searches": "searches per question", "tokens": "tokens written and read per question"}
    series = [Series(name, _costs(scores)) for name, scores in list(runs.items())[:MOST]]
    caption = (
        "Accuracy against cost: exact match with its 95 % interval over questions, by the mean cost of a question."
    )
    return scatter(series, "EM of each run against searches and tokens", caption, labels)


def _costs(scores: Mapping[str, Any]) -> dict[str, Points]:
    """Returns the point of a run in each panel of `cost_picture`, as far as it is known."""
    em, searches = finite(scores.get("em")), finite(scores.get("searches"))
    written, read = finite(scores.get("response_tokens")), finite(scores.get("read_tokens"))
    tokens = None if written is None or read is None else written + read
    if em is None:
        return {}
    ends = _ends(scores.get("em_ci95"), em)
    found = {"searches": searches, "tokens": tokens}
    return {name: [(cost, em, *ends)] for name, cost in found.items() if cost is not None}


def _hops(runs: Sequence[RunData]) -> Picture | None:
    """Draws EM by the number of hops, where the questions differ in it."""
    hops = sorted({str(row["hops"]) for run in runs for row in run.rows.values() if row.get("hops") is not None})
    if len(hops) < 2:
        return None
    hops = hops[:MOST]
    series = [Series(run.name, {_hop_name(own, runs): _bar(run, own) for own in hops}) for run in runs]
    caption = "Exact match by the number of hops of the question, with 95 % bootstrap intervals over questions."
    return bars(series, "EM of each run by number of hops", caption)


def _hop_name(hops: str, runs: Sequence[RunData]) -> str:
    """Returns the label of a group of bars, with the number of its questions."""
    count = max(sum(row.get("hops") == hops for row in run.rows.values()) for run in runs)
    return f"{hops} hop{'' if hops == '1' else 's'}\n{count} questions"


def _bar(run: RunData, hops: str) -> Points:
    """Returns EM of the questions of a number of hops with its interval, in order of ids; nothing if there are none."""
    values = [row["em"] for _, row in sorted(run.rows.items()) if row.get("hops") == hops and "em" in row]
    if not values:
        return []
    low, high = bootstrap_ci(values)
    return [(0.0, math.fsum(values) / len(values), low, high)]


def _recall(runs: Sequence[RunData]) -> Picture | None:
    """Draws the share of gold titles among all hits up to each turn."""
    title = "share of gold pages found up to a turn"
    series = [Series(run.name, {title: _by_turn(run.scores)}) for run in runs]
    caption = "Retrieval by turn: share of the gold titles among all hits so far, with 95 % intervals over questions."
    return panels(series, "turn", "Share of gold titles found by turn", caption, integer=True)


def _by_turn(scores: Mapping[str, Any]) -> Points:
    """Returns the recall of titles by turn; nothing if it was not measured."""
    means, bounds = scores.get("title_recall"), scores.get("title_recall_ci95")
    if not isinstance(means, list):
        return []
    points = []
    for turn, mean in enumerate(means[:MOST_TURNS], start=1):
        if (value := finite(mean)) is not None:
            own = bounds[turn - 1] if isinstance(bounds, list) and len(bounds) >= turn else None
            points.append((float(turn), value, *_ends(own, value)))
    return points


def _ends(bounds: object, value: float) -> tuple[float, float]:
    """Returns the ends of an interval; the value itself where there is none."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return value, value
    low, high = map(finite, bounds)
    return (value if low is None else low), (value if high is None else high)
