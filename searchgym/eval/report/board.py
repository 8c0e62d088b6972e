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
    items_of,
    number,
)
from searchgym.eval.report.evaluations import cost_picture

HEAD: Final = (
    "#", "name", "tier", "agent", "models", "EM", "95 % over questions", "seeds", "95 % over seeds", "F1", "searches",
    "tokens written", "tokens read", "gold pages found", "legal", "less the best, 95 %",
)  # fmt: skip
"""Heads of a track's table."""
TIERS: Final = {True: "run again", False: "recomputed"}
"""Tier of a row by whether it was run again."""
MEANING: Final = items_of(
    """
Tiers. | “run again”: the keepers of this page ran agent and models again and got the same scores. \
“recomputed”: every score was computed from the episodes of the submission by the one scorer. \
“reported”: numbers of others that nobody here could compute; they are never ranked.
Tracks. | Rows are compared within a track only: the same questions, corpus, retriever and budgets. Numbers of \
different tracks say nothing about each other. The table of a suite has the mean over its parts, each \
counting the same, for rows with one retriever and one set of budgets in all of them; it has no \
intervals and is no ranking.
Differences | are to the best row of the track, with a paired bootstrap interval over questions (95 %); “not \
distinguishable” where it holds 0. With several training seeds a question's score is the mean over \
them; the interval over seeds is Student's t.
Ceilings | are told the gold pages (evidence-oracle) or the answer (oracle); they bound the rows above and are \
not ranked.
What “recomputed” does not prove: | that the named model wrote the outputs, that its training saw none of the \
questions, or that nobody chose the best of several runs. `searchgym leaderboard check --replay` \
repeats the searches and the workflow on the recorded outputs, so that invented hits and answers \
that no output holds are refused; outputs that were themselves invented are found only by running the \
model again.
"""
)
"""How a reader should take the tables."""


def board_page(board: Board, *, figures: bool = False) -> ReportPage:
    """Returns the page of a leaderboard.

    Args:
        board: The rows.
        figures: Whether each track has a figure of accuracy against cost, for which matplotlib must be installed.
    """
    blocks: list[Block] = [
        TextBlock(["Made by ", Code("make leaderboard"), "; every row is computed again from its episodes."])
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
            blocks += [
                Heading(track.part, 3),
                TextBlock([f"Track: {track.label}."]),
                Table(HEAD, track_cells(track)),
            ]
            if figures and (picture := cost_picture({row.manifest.name: row.costs() for row in track.rows})):
                blocks.append(picture)
    if board.reported:
        blocks += [Heading("Reported only"), Table(*reported_table(board.reported))]
    if board.absent:
        blocks += [Heading("Not looked at here"), Items([("", [text]) for text in board.absent])]
    return ReportPage("Leaderboard", [*blocks, Heading("How to read it"), MEANING])


def track_cells(track: Track) -> list[list[str]]:
    """Returns the cells of a track's table, a row for each row under `HEAD`."""
    ranked = iter(range(1, len(track.rows) + 1))
    return [_cells(track, row, "" if row.is_ceiling else str(next(ranked))) for row in track.rows]


def _cells(track: Track, row: BoardRow, rank: str) -> list[str]:
    """Returns the cells of one row."""
    manifest, seeds = row.manifest, row.over_seeds("em")
    models = ", ".join(dict.fromkeys(used.name for member in row.members for used in member.manifest.models.values()))
    gap = track.to_best.get(manifest.name)
    verdict = "ceiling" if row.is_ceiling else "best" if gap is None else str(gap)
    return [
        rank,
        manifest.name,
        TIERS[row.rerun],
        manifest.agent + (f", T {manifest.temperature:g}, {manifest.samples} samples" if manifest.temperature else ""),
        models,
        number(row.mean("em")),
        between(row.interval("em")),
        str(len(row.members)),
        "" if seeds is None else between(seeds),
        number(row.mean("f1")),
        *(number(row.mean(name), 2 if name == "searches" else 0 if name.endswith("tokens") else 3) for name in COSTS),
        verdict,
    ]


def suite_table(tracks: Sequence[Track]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and cells of the EM of each row in every part of a suite, for rows that are in all of them."""
    em: dict[str, list[float | None]] = {}
    for place, track in enumerate(tracks):
        for row in track.rows:
            em.setdefault(row.manifest.name, [None] * len(tracks))[place] = row.mean("em")
    ceilings = {row.manifest.name for track in tracks for row in track.rows if row.is_ceiling}
    whole = {name: [v for v in values if v is not None] for name, values in em.items()}
    means = {name: sum(values) / len(tracks) for name, values in whole.items() if len(values) == len(tracks)}
    ordered = sorted(means, key=lambda name: (name in ceilings, -means[name], name))
    cells = [[name, *map(number, whole[name]), number(means[name])] for name in ordered]
    return ["EM", *(track.part for track in tracks), "mean over parts"], cells


def reported_table(rows: Sequence[Reported]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and cells of the rows that are reported only."""
    cells = [
        [row.name, f"{row.suite} {row.part}", number(row.em), number(row.f1), row.source, row.differs, row.by]
        for row in rows
    ]
    return ["name", "data", "EM", "F1", "source", "what differs", "by"], cells
