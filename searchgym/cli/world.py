"""The ``world`` command: builds generated worlds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from searchgym.cards import WorldSpec
from searchgym.cli.output import Json, emit

world = typer.Typer(help="Generated worlds: pages and questions from a seed.", no_args_is_help=True)


@world.callback()
def group() -> None:
    """Generated worlds: pages and questions from a seed."""


@world.command("build")
def world_build(
    out: Annotated[Path, typer.Option(help="Output folder.")],
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")] = 0,
    level: Annotated[str, typer.Option(help="Kind of language: simple or full.")] = "simple",
    size: Annotated[int, typer.Option(help="Number of questions.")] = 500,
    split: Annotated[str, typer.Option(help="Split: train, validation, test or transfer.")] = "train",
    hops: Annotated[str, typer.Option(help="Numbers of pages that questions need, out of 1,2,3,4.")] = "1,2,3,4",
    strata: Annotated[
        str, typer.Option(help="Only for level full: some of 1, 2-5, 6-20, reformulation; all if empty.")
    ] = "",
    json: Json = False,
) -> None:
    """Build a world: corpus.jsonl, questions.jsonl, triples.tsv, card.yaml, report.json and report.md."""
    from searchgym.corpora.files import read_json
    from searchgym.corpora.worlds import build_world, write_world
    from searchgym.corpora.worlds.storage import check_free
    from searchgym.errors import UsageError

    try:
        hop_counts = tuple(int(hop) for hop in hops.split(","))
    except ValueError:
        raise UsageError(f"--hops must be numbers such as 1,2, got {hops!r}") from None
    check_free(out)
    started = time.perf_counter()
    ranks = tuple(strata.split(",")) if strata else ()
    built = build_world(WorldSpec(level, size, seed, split, hop_counts, ranks))  # type: ignore[arg-type]  # WorldSpec checks the names
    written = write_world(built, out)
    report = read_json(written / "report.json")
    summary = {"seconds": round(time.perf_counter() - started, 3), "out": str(out)}
    emit({name: value for name, value in report.items() if name != "shapes"} | summary, json, "world")
