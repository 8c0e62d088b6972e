"""Commands that generate: ``world`` builds worlds, ``questions`` makes question sets from any corpus."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from searchgym.cli.output import Json, emit, emit_rows, say, say_next, stages
from searchgym.questions.worlds.schema import WorldSpec

world = typer.Typer(help="Build a world of pages and questions from a seed.", no_args_is_help=True)


@world.callback()
def group() -> None:
    """Build a world of pages and questions from a seed."""


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
    """Build a world into a folder.

    It has corpus.jsonl, questions.jsonl, triples.tsv, card.yaml, report.json and report.md.
    """
    from searchgym.corpora.files import read_json
    from searchgym.corpora.folders import check_free
    from searchgym.errors import UsageError
    from searchgym.questions.worlds import build_world, write_world

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
    if not json:
        files = ("--questions", out / "questions.jsonl", "--corpus", out / "corpus.jsonl")
        say_next("eval", *files, "--agent", "single-search")


questions = typer.Typer(help="Generate, inspect and select questions.", no_args_is_help=True)


@questions.callback()
def questions_group() -> None:
    """Generate, inspect and select questions."""


@questions.command("generate")
def questions_generate(
    corpus: Annotated[str, typer.Argument(help="Corpus file, BEIR folder, folder of documents, or corpus card.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Number of questions over all splits.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same questions.")] = 0,
    pack: Annotated[str, typer.Option(help="Pack of patterns and wordings: a name or a file.")] = "people-and-works",
    shapes: Annotated[
        str, typer.Option(help="Shapes of questions, such as chain,comparison; empty: all but sentence.")
    ] = "",
    top_k: Annotated[int, typer.Option(min=1, help="Hits per search in the environment.")] = 3,
    shares: Annotated[
        str, typer.Option(help="Shares of the questions for train, validation and test, such as 0.6,0.1,0.3.")
    ] = "0.8,0.1,0.1",
    hold_out: Annotated[
        list[Path] | None, typer.Option(help="Question file whose gold pages and answers are left out; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Generate questions from English documents.

    The train, validation and test sets share no gold page.
    """
    from searchgym.corpora.documents import open_corpus
    from searchgym.corpora.folders import check_free
    from searchgym.envs.data import find_corpus
    from searchgym.errors import UsageError
    from searchgym.questions.report import crossed
    from searchgym.questions.source import held_out_by
    from searchgym.questions.spec import GeneratedSpec
    from searchgym.questions.storage import write_set

    check_free(out)
    try:
        parts = tuple(float(share) for share in shares.split(","))
    except ValueError:
        raise UsageError(f"--shares must be three numbers such as 0.6,0.1,0.3, got {shares!r}") from None
    chosen = tuple(shapes.split(",")) if shapes else ()
    spec = GeneratedSpec(n=n, seed=seed, pack=pack, shapes=chosen, shares=parts)
    passages = list(open_corpus(find_corpus(corpus)))
    held_out = held_out_by(passages, hold_out or ())
    started = time.perf_counter()
    try:
        with stages() as progress:
            card = write_set(passages, spec, out, held_out, corpus, progress, spec.needed, top_k)
    except KeyboardInterrupt:
        say("interrupted: the same command goes on where this one ended")
        raise typer.Exit(130) from None
    total = sum(card["questions"].values())
    if total < n:
        say(f"{total} of {n} questions: {out / 'report.md'} tells what each filter took")
    if card["cut_links"]:
        say(crossed(card))
    names = ("questions", "multi_hop", "links", "facts", "held_out_pages", "cut_links", "crossing")
    summary = {name: card[name] for name in names} | {"seconds": round(time.perf_counter() - started, 1)}
    emit(summary | {"out": str(out)}, json, "questions")
    if not json:
        test = out / "questions" / "test.jsonl" if card["questions"].get("test") else out / "questions" / "train.jsonl"
        say_next("eval", "--questions", test, "--corpus", corpus, "--agent", "single-search")


@questions.command("inspect")
def questions_inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Question set, or folder of a world.")],
    examples: Annotated[int, typer.Option(min=0, help="Questions of each shape to show.")] = 2,
    json: Json = False,
) -> None:
    """Show the questions of a set, and its shortcuts.

    Shortcuts are ways to answer without searching.
    """
    from searchgym.corpora.files import read_json
    from searchgym.envs.reward import unpaid
    from searchgym.questions.shortcuts import hops_of
    from searchgym.questions.storage import read_split, world_shortcuts

    if (folder / "triples.tsv").is_file():
        measured, records = world_shortcuts(folder)
        rows = measured.rows()
    else:
        records = read_split(folder, "all")
        rows = read_json(folder / "report.json")["shortcuts"]
    emit_rows(rows, json, "shortcuts")
    for note in unpaid(records):
        say(f"note: {note}")
    printed: dict[tuple[str | None, int], int] = {}
    for question in () if json else records:
        key = question.kind, hops_of(question)
        printed[key] = printed.get(key, 0) + 1
        if printed[key] <= examples:
            say(f"{question.kind}, {hops_of(question)} hops: {question.text}\n  -> {question.answers[0]}")
