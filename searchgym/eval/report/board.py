"""The page of a leaderboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from searchgym.eval.leaderboard.submission import Reported
from searchgym.eval.leaderboard.table import COSTS, Board, BoardRow, Track
from searchgym.eval.leaderboard.tasks import BUDGETS
from searchgym.eval.report.blocks import (
    Block,
    Code,
    Heading,
    Items,
    ReportPage,
    Table,
    TextBlock,
    between,
    filled,
    items_of,
    number,
    outcomes,
)
from searchgym.eval.report.evaluations import ORACLES, cost_picture

HEAD: Final = (
    "#", "name", "tier", "agent", "models", "EM", "95 % over questions", "EM, answerable",
    "judged", "95 % of judged", "judge", "seeds", "95 % over seeds", "F1", "searches",
    "tokens written", "tokens read", "gold pages found", "legal", "less the best, 95 %",
)  # fmt: skip
"""Keys of a row, as `track_cells` returns them."""
PAGE_HEAD: Final = (
    "#", "name", "EM (95 %)", "minus the best (95 %)", "EM, answerable", "judged (95 %)", "judge", "F1", "searches",
    "tokens written",
    "tokens read", "gold pages found", "legal", "seeds (95 %)", "agent", "models", "tier",
)  # fmt: skip
"""Heads of a track's table on a page."""
TIERS: Final = {True: "run again", False: "recomputed"}
"""Tier of a row by whether it was run again."""
MEANING: Final = items_of(
    """
Tiers. | “run again”: the keepers of this page ran agent and models again and got the same scores. \
“recomputed”: every score was computed from the episodes of the submission by the environment's scorer. \
“reported”: numbers of others that could not be computed here; they are never ranked.
Tracks. | Rows are comparable only within a track: the same questions, corpus, retriever and budgets. The table of a \
suite shows the mean over its parts, each with equal weight, for rows with the same retriever and budgets \
in all parts; it has no intervals and is no ranking.
EM (95 %) | is exact match with a bootstrap interval over questions. With several training seeds a question's score \
is the mean over them, and “seeds” shows their number and Student's t interval over seeds. F1 is left out \
where it equals EM in every row.
EM, answerable | is EM on the questions whose gold pages and answer are in the corpus, and their number. Where the \
column is missing, all are.
Judged (95 %) | is the share of answers that the judge beside it says are right; no verdict counts as not right. It \
was recomputed from the verdicts of the submission; a judge by rules was also run again. Rows whose judges differ are \
comparable only as far as “judge” says on how many items of the calibration sample they disagree (95 % \
interval of the share).
Minus the best | is the difference to the best row of the track, paired by question, with a 95 % bootstrap interval; \
“not distinguishable” means that the interval contains 0.
Oracles | read the gold pages or answers. They are upper bounds and are not ranked.
What “recomputed” does not prove: | that the named model wrote the outputs, that its training saw none of the \
questions, or that nobody chose the best of several runs. `searchgym leaderboard check --replay` \
repeats the searches and the workflow on the recorded outputs, so invented hits and invented answers \
are refused; invented outputs are found only by running the model again.
"""
)
"""Notes on how to read the tables."""


def board_page(board: Board, *, figures: bool = False) -> ReportPage:
    """Returns the page of a leaderboard.

    Args:
        board: The rows.
        figures: Whether each track has a figure of accuracy against cost, for which matplotlib must be installed.
    """
    blocks: list[Block] = [
        *outcomes([_outcome(track) for track in board.tracks]),
        TextBlock(["Made by ", Code("make leaderboard"), "; every row is recomputed from its episodes."]),
    ]
    for suite in dict.fromkeys(track.suite for track in board.tracks):
        blocks.append(Heading(suite))
        tracks = [track for track in board.tracks if track.suite == suite]
        settings: dict[str, list[Track]] = {}  # by retriever and budgets: a mean over parts needs the same
        for track in tracks:
            first = track.rows[0].manifest
            retriever = {k: v for k, v in first.retriever.items() if k not in ("passages", "corpus")}
            key = json.dumps([retriever, [getattr(first, name) for name in BUDGETS]], sort_keys=True)
            settings.setdefault(key, []).append(track)
        blocks += [Table(*suite_table(alike)) for alike in settings.values() if len(alike) > 1]
        for track in tracks:
            blocks += [Heading(track.part, 3), TextBlock([f"Track: {track.label}."]), *_track_tables(track)]
            if figures and (picture := cost_picture({row.manifest.name: row.costs() for row in track.rows})):
                blocks.append(picture)
    if board.reported:
        blocks += [Heading("Reported only"), Table(*reported_table(board.reported))]
    if board.absent:
        blocks += [Heading("Not checked here"), Items([("", [text]) for text in board.absent])]
    return ReportPage("Leaderboard", [*blocks, Heading("How to read it"), MEANING])


def _outcome(track: Track) -> str:
    """Returns one sentence on the best row of a track, the second one and the date; empty without an EM."""
    rows = [row for row in track.rows if not row.is_oracle and row.mean("em") is not None]
    if not rows:
        return ""
    best = rows[0]
    text = f"{track.suite}, {track.part}: “{best.manifest.name}” has the best EM, {number(best.mean('em'))}"
    text += f" (95 % interval {between(best.interval('em'))}), on {len(best.questions)} questions"
    if len(rows) > 1:
        second = rows[1]
        gap = track.to_best.get(second.manifest.name)
        text += f"; second of {len(rows)} is “{second.manifest.name}” with {number(second.mean('em'))}"
        text += "" if gap is None else f", difference {gap}"
    return f"{text}. Newest submission: {max(member.manifest.date for row in rows for member in row.members)}."


def _track_tables(track: Track) -> list[Block]:
    """Returns the table of the ranked rows of a track, and that of its oracles below it."""
    rows: list[dict[str, str]] = [dict(zip(HEAD, cells, strict=True)) for cells in track_cells(track)]
    f1 = any(row["F1"] != row["EM"] for row in rows)
    results, oracles = list[list[str]](), list[list[str]]()
    for row, data in zip(rows, track.rows, strict=True):
        interval, over_seeds = row["95 % over questions"], row["95 % over seeds"]
        cells: dict[str, str] = (
            dict.fromkeys(PAGE_HEAD, "")
            | row
            | {
                "EM (95 %)": row["EM"] + (f" ({interval})" if interval else ""),
                "minus the best (95 %)": str(track.to_best.get(row["name"], "")),
                "judged (95 %)": row["judged"] + (f" ({row['95 % of judged']})" if row["judged"] else ""),
                "F1": row["F1"] if f1 else "",
                "seeds (95 %)": f"{row['seeds']} ({over_seeds})" if over_seeds else "",
                "agent": "" if row["agent"] == row["name"] else row["agent"],
            }
        )
        (oracles if data.is_oracle else results).append([cells[name] for name in PAGE_HEAD])
    blocks: list[Block] = [filled(PAGE_HEAD, results)] if results else []
    return [*blocks, TextBlock([ORACLES]), filled(PAGE_HEAD, oracles)] if oracles else blocks


def track_cells(track: Track) -> list[list[str]]:
    """Returns the cells of every row of a track, in the order of `HEAD`."""
    ranked = iter(range(1, len(track.rows) + 1))
    return [_cells(track, row, "" if row.is_oracle else str(next(ranked))) for row in track.rows]


def _cells(track: Track, row: BoardRow, rank: str) -> list[str]:
    """Returns the cells of one row."""
    manifest, seeds = row.manifest, row.over_seeds("em")
    models = ", ".join(dict.fromkeys(used.name for member in row.members for used in member.manifest.models.values()))
    gap = track.to_best.get(manifest.name)
    verdict = "ceiling" if row.is_oracle else "best" if gap is None else str(gap)
    return [
        rank,
        manifest.name,
        TIERS[row.rerun],
        manifest.agent + (f", T {manifest.temperature:g}, {manifest.samples} samples" if manifest.temperature else ""),
        models,
        number(row.mean("em")),
        between(row.interval("em")),
        _answerable(row),
        number(row.mean("judged")),
        between(row.interval("judged")),
        track.judges.get(manifest.name, ""),
        str(len(row.members)),
        "" if seeds is None else between(seeds),
        number(row.mean("f1")),
        *(number(row.mean(name), 2 if name == "searches" else 0 if name.endswith("tokens") else 3) for name in COSTS),
        verdict,
    ]


def _answerable(row: BoardRow) -> str:
    """Returns the EM on the questions that the corpus can answer, with their number; empty if it can answer all."""
    part = row.on_answerable
    return "" if part is None else f"{number(part['em'])} ({part['n']} of {part['of']})"


def suite_table(tracks: Sequence[Track]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and cells of the EM of each row in every part of a suite, for rows that are in all parts.

    Oracles are left out.
    """
    em: dict[str, list[float]] = {}
    for track in tracks:
        for row in track.rows:
            if not row.is_oracle and (mean := row.mean("em")) is not None:
                em.setdefault(row.manifest.name, []).append(mean)
    means = {name: sum(values) / len(tracks) for name, values in em.items() if len(values) == len(tracks)}
    ordered = sorted(means, key=lambda name: (-means[name], name))
    cells = [[name, number(means[name]), *map(number, em[name])] for name in ordered]
    return ["name", "EM, mean over parts", *(f"EM, {track.part}" for track in tracks)], cells


def reported_table(rows: Sequence[Reported]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and cells of the rows with reported numbers."""
    cells = [
        [row.name, f"{row.suite} {row.part}", number(row.em), number(row.f1), row.source, row.differs, row.by]
        for row in rows
    ]
    return ["name", "data", "EM", "F1", "source", "what differs", "by"], cells
