"""The ``index`` commands: build, convert, inspect and search indexes."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.data import Format, Out, Overwrite, SkipBad, Source, read, report
from searchgym.cli.output import Json, announce, emit, emit_rows, say, say_next, stages
from searchgym.errors import UsageError

if TYPE_CHECKING:
    from searchgym.retrieval.cards import RetrieverCard
    from searchgym.retrieval.index.index import IndexManifest
    from searchgym.retrieval.index.size import Size

index = typer.Typer(help="Build, convert, inspect and search indexes.", no_args_is_help=True)
Card = Annotated[str, typer.Option("--retriever", help="Retriever card (name or path) to build for.")]
CUT: Final = 300
"""Characters of each passage that a search prints."""
Restart = Annotated[bool, typer.Option("--restart", help="Discard an interrupted build and start anew.")]
Force = Annotated[bool, typer.Option("--force", help="Build even if memory or disk space seems too small.")]


@index.command("build")
def index_build(
    source: Source,
    out: Out,
    retriever: Card = "bm25",
    k1: Annotated[float | None, typer.Option(help="BM25 k1: how fast repeated terms saturate.")] = None,
    b: Annotated[float | None, typer.Option(help="BM25 b: how much long passages are discounted.")] = None,
    form: Format = None,
    skip_bad: SkipBad = 0,
    overwrite: Overwrite = False,
    restart: Restart = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Build an index folder.

    An interrupted build resumes where it stopped.
    """
    from searchgym.options import plain
    from searchgym.retrieval.cards import find_retriever
    from searchgym.retrieval.index.build import build_index, building_folder, check_free
    from searchgym.retrieval.index.size import estimate

    card = find_retriever(retriever)
    if overrides := {name: value for name, value in (("k1", k1), ("b", b)) if value is not None}:
        fields = plain(card)
        if not overrides.keys() <= fields.keys():
            raise UsageError("--k1 and --b only apply to retriever cards that have them, such as bm25 and lucene")
        card = find_retriever(fields | overrides)
    check_free(out, overwrite)
    passages, bad = read(source, form, skip_bad)
    size = estimate(source)
    if size is not None:
        _check_room(card, size, out, force)
    started = time.perf_counter()
    try:
        with stages(0 if size is None else size.passages) as progress:
            manifest = build_index(passages, out, card, overwrite=overwrite, restart=restart, progress=progress)
    except KeyboardInterrupt:
        if (left := building_folder(out)).exists():
            say(f"interrupted: finished parts are kept in {left}; go on with the same command")
        raise typer.Exit(130) from None
    emit(_summary(manifest, started, out) | {"left_out": report(bad)}, json, "index")
    if not json:
        say_next("index", "search", out, "your question")


@index.command("convert")
def index_convert(
    source: Annotated[
        Path, typer.Argument(help="Index folder with vectors, a FAISS file such as e5_Flat.index, or a Lucene index.")
    ],
    out: Out,
    retriever: Card,
    corpus: Annotated[str | None, typer.Option(help="Corpus of the FAISS file or Lucene index.")] = None,
    overwrite: Overwrite = False,
    restart: Restart = False,
    json: Json = False,
) -> None:
    """Convert vectors or a Lucene index to a folder.

    Nothing is encoded or indexed again.
    """
    from searchgym.retrieval.index.convert import convert_index

    started = time.perf_counter()
    with stages() as progress:
        manifest = convert_index(
            source, out, retriever, corpus, overwrite=overwrite, restart=restart, progress=progress
        )
    emit(_summary(manifest, started, out), json, "index")
    if not json:
        say_next("index", "search", out, "your question")


@index.command("inspect")
def index_inspect(
    folder: Annotated[Path, typer.Argument(help="Index folder.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare checksums.")] = False,
    json: Json = False,
) -> None:
    """Show and check an index folder."""
    from searchgym.retrieval.index.index import inspect_index

    emit(inspect_index(folder, verify=verify), json, str(folder))


@index.command("search")
def index_search(
    folder: Annotated[Path, typer.Argument(help="Index folder, corpus file, or folder of documents.")],
    query: Annotated[str, typer.Argument(help="Query text.")],
    top_k: Annotated[int, typer.Option(min=1, help="Maximum number of hits.")] = 5,
    retriever: Annotated[str | None, typer.Option(help="Retriever card to search with.")] = None,
    full: Annotated[bool, typer.Option("--full", help=f"Print whole passages, not {CUT} characters of each.")] = False,
    json: Json = False,
) -> None:
    """Search an index."""
    from searchgym.envs.data import find_corpus, load_corpus

    (hits,) = load_corpus(find_corpus(folder), retriever, announce()).search([query], top_k)
    rows = [
        {"rank": rank, "score": hit.score, "id": hit.passage.id, "title": hit.passage.title, "text": hit.passage.text}
        for rank, hit in enumerate(hits, start=1)
    ]
    for row in rows if not (full or json) else ():
        text = str(row["text"])
        row["text"] = text if len(text) <= CUT else f"{text[:CUT].rstrip()} ... ({len(text):,} characters, --full)"
    if not rows and not json:
        say("no hits: no word of the query is in the corpus")
    emit_rows(rows, json, "hits")


def _summary(manifest: IndexManifest, started: float, out: Path) -> dict[str, Any]:
    return {
        "passages": manifest.passages,
        "corpus_sha256": manifest.corpus_sha256,
        "parts": list(manifest.parts),
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "seconds": round(time.perf_counter() - started, 3),
        "out": str(out),
    }


def _check_room(card: RetrieverCard, size: Size, out: Path, force: bool) -> None:
    """Prints the memory and disk space that a build needs, and refuses a build that does not fit.

    Raises:
        UsageError: Memory or disk space is too small, and `force` is False.
    """
    from searchgym.retrieval.index.build import building_folder
    from searchgym.retrieval.index.size import needs

    begun = sum(file.stat().st_size for file in building_folder(out).rglob("*") if file.is_file())
    disk = free_disk(out.parent)
    free = {"memory": memory()[1], "disk": None if disk is None else disk + begun}
    short = []
    for name, amount in zip(free, needs(card, size), strict=True):
        available = free[name]
        free_text = "unknown" if available is None else f"{available / 2**30:.2f} GiB"
        say(f"{name}: about {amount / 2**30:.2f} GiB, free {free_text}")
        if available is not None and available < amount:
            short.append(name)
    if short and not force:
        raise UsageError(
            f"about {size.passages} passages need more {' and '.join(short)} than is free: make room, build another "
            "kind of index (ivf-sq8 takes a quarter of flat), or pass --force"
        )


def memory(group: Path = Path("/sys/fs/cgroup"), info: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Returns bytes of memory in all and available, both at most what a container may use; None where unknown."""
    texts = [
        file.read_text() if file.is_file() else "" for file in (info, group / "memory.max", group / "memory.current")
    ]
    sizes = {name: int(size) * 1024 for name, size in itertools.pairwise(texts[0].split()) if size.isdigit()}
    total, free = sizes.get("MemTotal:"), sizes.get("MemAvailable:")
    if texts[1].strip().isdigit():
        limit, used = int(texts[1]), int(texts[2] or 0)
        total, free = min(total or limit, limit), min(limit if free is None else free, max(limit - used, 0))
    return total, free


def free_disk(folder: Path) -> int:
    """Returns the free bytes of the disk on which a folder is, or would be made."""
    return shutil.disk_usage(next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())).free
