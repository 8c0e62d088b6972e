"""The ``selfplay`` command: a proposer writes questions to train a solver, and learns which of them help the solver."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from searchgym.cli.output import Json, emit, say, table
from searchgym.cli.train import recipe_of, run_training
from searchgym.corpora.files import iter_jsonl
from searchgym.errors import UsageError

COLUMNS = {
    "proposer/signal": "signal",
    "proposer/signal_unnamed": "of open questions",
    "proposer/pass_rate": "pass rate",
    "proposer/hops": "hops",
    "rollout/searches": "searches",
    "proposer/named": "named answers",
    "proposer/valid": "valid",
    "proposer/entropy": "entropy",
    "proposer/distinct_arms": "distinct kinds",
}
"""Metrics in the table, with their headings."""


def selfplay(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe name or YAML file.")] = "tiny-selfplay",
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values to override.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default a new one under runs/selfplay/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out; steps may be more.")] = False,
    show: Annotated[int, typer.Option(min=0, help="Questions to print from the start, and from the end.")] = 5,
    json: Json = False,
) -> None:
    """Train on questions that a proposer makes.

    The proposer walks a graph of the corpus, and learns which kinds of questions teach the solver.
    """
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    loaded = recipe_of(recipe, overrides)
    if loaded.proposer is None:
        raise UsageError(f"{recipe} has no proposer: set proposer=path, or train it by `searchgym train`")
    folder = out or Path("runs") / "selfplay" / f"{loaded.name}_{time.strftime('%Y%m%d-%H%M%S')}"
    summary = run_training(loaded, overrides or [], folder, resume, json)
    rows = [row for _, row in iter_jsonl(folder / "metrics.jsonl") if "proposer/signal" in row]
    proposed = [row for _, row in iter_jsonl(folder / "proposed.jsonl")]
    thirds = thirds_of(rows)
    if json:
        emit(summary | {"proposer": thirds, "first": proposed[:show], "last": proposed[-show:] if show else []}, True)
        return
    emit(summary, False, loaded.name)
    table(("steps", *COLUMNS.values()), [tuple(third.values()) for third in thirds], "what was proposed")
    if fewer_searches(rows):
        say(
            "the solver searches less than it did, and most questions needed a single page: proposer.hops=[2,3,4] asks "
            "for more"
        )
    for title, some in (("first questions", proposed[:show]), ("last questions", proposed[-show:])):
        if show:
            table(("kind", "question", "answer"), [_said(row) for row in some], title)
    say(f"every question: {folder / 'proposed.jsonl'}; curves: {folder / 'curve.png'}")


def thirds_of(rows: Sequence[Mapping[str, float]]) -> list[dict[str, str]]:
    """Returns the metrics of `COLUMNS`, averaged over each third of the steps."""
    cuts = [round(len(rows) * part / 3) for part in range(4)]
    thirds = []
    for start, end in itertools.pairwise(cuts):
        if part := rows[start:end]:
            row = {"steps": f"{part[0]['step']:.0f} to {part[-1]['step']:.0f}"}
            for name in COLUMNS:
                values = [step[name] for step in part if name in step]
                row[name.partition("/")[2]] = f"{mean(values):.3f}" if values else "n/a"
            thirds.append(row)
    return thirds


def fewer_searches(rows: Sequence[Mapping[str, float]]) -> bool:
    """Tells whether a solver has learnt to search less from questions most of which need one page."""
    if not rows:
        return False
    fifth = max(len(rows) // 5, 1)
    first, last = (mean(row["rollout/searches"] for row in part) for part in (rows[:fifth], rows[-fifth:]))
    return mean(row["proposer/hops"] for row in rows) < 1.5 and last < 0.75 * first


def _said(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns the kind, the text and the answer of a proposed question."""
    return f"{row['kind']} {row['metadata']['hops']}", str(row["text"]), str(row["answers"][0])
