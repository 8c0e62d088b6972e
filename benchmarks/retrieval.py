"""BM25 in process beside Lucene (pyserini's own searcher, called directly), and FAISS indexes, on generated data.

Each engine builds in one process and searches in another, so that memory is its own; both engines of BM25 index title
and text of the same passages with the same analysis, k1 0.9 and b 0.4, and answer the same questions. What is timed
ends with passages on one side and with document ids on the other. Resident memory is read after 1,000 questions and
holds the pages of mapped files. Vectors are drawn from 1,000 Gaussian clusters: for time and size only, recall on such
vectors says nothing (see retrieval_quality.py). Needs the extras `lucene` and `dense`, and a JDK:

    python benchmarks/retrieval.py --sizes 100000 1000000 --vectors 1000000
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import generated
import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.corpora.retrieval.bm25 import contents
from searchgym.corpora.retrieval.build import build_index
from searchgym.corpora.retrieval.cards import find_retriever
from searchgym.corpora.retrieval.index import load_index

T = TypeVar("T")
Search = Callable[[Sequence[str], int], list[list[str]]]
"""From queries and a number of threads to the ids of each one's first hits."""
K: Final = 10
BATCHES: Final = (1, 16, 256)
THREADS: Final = (1, 2)
WIKIPEDIA: Final = 21_015_324
"""Passages of the corpus that search agents are usually trained on."""


def main() -> None:
    """Measures and prints."""
    args = parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for size in args.sizes:
            rows += text_rows(size, Path(folder), args)
            show(rows[-3:], args, f"BM25, {size} passages")
        dense = [vector_row(kind, args, Path(folder)) for kind in args.kinds] if args.vectors else []
    projected = projections(rows)
    if args.json:
        print(json.dumps({"bm25": rows, "vectors": dense, "projection": projected}))
    else:
        show(dense, args, f"{args.vectors} vectors of {args.dimension} numbers")
        show(projected, args, f"projected to {WIKIPEDIA} passages (see --help)")


def parse_args() -> argparse.Namespace:
    """Reads the arguments."""
    projection = (
        "The projection draws a power law through the two largest sizes of each engine, for seconds per question and "
        "for resident memory; bytes and build time grow in proportion to passages."
    )
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=projection, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000], help="passages")
    parser.add_argument("--queries", type=int, default=1024, help="questions of a timed run; memory needs 1,000")
    parser.add_argument("--runs", type=int, default=3, help="timed runs, after one that is not counted")
    parser.add_argument("--vectors", type=int, default=1_000_000, help="0 leaves FAISS out")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--kinds", nargs="*", default=["flat", "ivf-sq8", "hnsw"])
    parser.add_argument("--folder", help="where to put corpora and indexes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def show(rows: Sequence[dict[str, Any]], args: argparse.Namespace, title: str) -> None:
    """Prints a table, unless JSON was asked for."""
    if rows:
        emit_rows(rows, False, "rows", title) if not args.json else print(json.dumps(rows), file=sys.stderr)


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# -- text ----------------------------------------------------------------------------------------------------------


def text_rows(size: int, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each engine."""
    questions = generated.queries(args.queries, size)
    found: dict[str, list[list[str]]] = {}
    rows = []
    for name, build, search in (
        ("searchgym bm25", build_ours, search_ours),
        ("pyserini", build_lucene, search_lucene),
        ("searchgym lucene", build_ours, search_ours),
    ):
        index = folder / f"{name.replace(' ', '-')}-{size}"
        print(f"{name}, {size}: building ...", file=sys.stderr)
        built = apart(build, name, size, index)
        print(f"{name}, {size}: searching ...", file=sys.stderr)
        found[name], measured = apart(search, name, index, questions, args)
        rows.append({"engine": name, "passages": size, **built, "overlap": 1.0, **measured})
    for row in rows:
        row["overlap"] = round(overlap(found[row["engine"]], found["pyserini"]), 4)
    return rows


def overlap(ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> float:
    """Returns the mean share of the first hits in common."""
    shares = [len(set(a) & set(b)) / max(len(a), len(b), 1) for a, b in zip(ours, theirs, strict=True)]
    return statistics.mean(shares)


def build_ours(name: str, size: int, index: Path) -> dict[str, Any]:
    """Builds an index folder."""
    started = time.perf_counter()
    build_index(generated.passages(size), index, name.split()[1])
    return built(started, index)


def build_lucene(name: str, size: int, index: Path) -> dict[str, Any]:
    """Builds by pyserini's own indexer, on every core."""
    from searchgym.corpora.retrieval.java import start_java

    start_java("4g")
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # pyserini does not import without one
    from pyserini.index.lucene import LuceneIndexer

    started = time.perf_counter()
    indexer = LuceneIndexer(str(index), threads=os.cpu_count() or 1)
    batch: list[dict[str, str]] = []
    for passage in generated.passages(size):
        batch.append({"id": passage.id, "contents": contents(passage)})
        if len(batch) == 10_000:
            indexer.add_batch_dict(batch)
            batch = []
    indexer.add_batch_dict(batch)
    indexer.close()
    return built(started, index)


def built(started: float, index: Path) -> dict[str, Any]:
    """Returns what a build took."""
    size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "build_s": round(time.perf_counter() - started, 1),
        "build_gib": round(peak, 2),
        "index_mib": round(size / 2**20),
    }


def search_ours(name: str, index: Path, questions: Sequence[str], args: argparse.Namespace) -> Any:
    """Measures a retriever over an index folder."""
    kind = name.split()[1]
    opened = {n: load_index(index, card=find_retriever({"kind": kind, "threads": n})) for n in THREADS[-1:]}
    one = load_index(index, card=find_retriever({"kind": kind, "threads": 1}))

    def search(batch: Sequence[str], threads: int) -> list[list[str]]:
        retriever = one if threads == 1 else opened[threads]
        return [[hit.passage.id for hit in hits] for hits in retriever.search(batch, K)]

    return measure(search, questions, args.runs)


def search_lucene(name: str, index: Path, questions: Sequence[str], args: argparse.Namespace) -> Any:
    """Measures pyserini's own searcher."""
    from searchgym.corpora.retrieval.java import start_java

    start_java("4g")
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # pyserini does not import without one
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(index))
    searcher.set_bm25(0.9, 0.4)

    def search(batch: Sequence[str], threads: int) -> list[list[str]]:
        if len(batch) == 1:
            return [[hit.docid for hit in searcher.search(batch[0], K)]]
        ids = [str(i) for i in range(len(batch))]
        found = searcher.batch_search(list(batch), ids, K, threads)
        return [[hit.docid for hit in found[i]] for i in ids]

    return measure(search, questions, args.runs)


# -- measuring -----------------------------------------------------------------------------------------------------


def measure(search: Search, questions: Sequence[str], runs: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Returns the hits and, as medians of several runs, queries per second and latencies."""
    hits = [found for batch in batches(questions, 256) for found in search(batch, THREADS[-1])]
    row: dict[str, Any] = {"rss_gib": round(resident() / 2**30, 2)}
    for threads in THREADS:
        for size in BATCHES:
            if size == 1 and threads != THREADS[0]:
                continue  # one question is one thread's
            few = questions if size > 1 else questions[:256]
            times = [timed(search, few, size, threads) for _ in range(runs + 1)][1:]
            row[f"qps_b{size}_t{threads}"] = round(statistics.median(len(few) / sum(run) for run in times), 1)
            if size == 1:
                every = sorted(1000 * seconds for run in times for seconds in run)
                row |= {"p50_ms": round(statistics.median(every), 2), "p99_ms": round(np.percentile(every, 99), 2)}
    return hits, row


def timed(search: Search, questions: Sequence[str], size: int, threads: int) -> list[float]:
    """Returns the seconds of each call."""
    seconds = []
    for batch in batches(questions, size):
        started = time.perf_counter()
        search(batch, threads)
        seconds.append(time.perf_counter() - started)
    return seconds


def batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yields the items, some at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def resident() -> int:
    """Returns the bytes of this process that are in memory, those of mapped files too."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Rss:"))


# -- vectors -------------------------------------------------------------------------------------------------------


def vector_row(kind: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns a row for one kind of FAISS index."""
    index = folder / kind
    index.mkdir()
    print(f"{kind}, {args.vectors}: building ...", file=sys.stderr)
    built = apart(build_vectors, kind, args.vectors, args.dimension, index)
    print(f"{kind}, {args.vectors}: searching ...", file=sys.stderr)
    measured = apart(search_vectors, index, args)
    return {"index": kind, "vectors": args.vectors, **built, **measured}


def vectors(count: int, dimension: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of unit vectors around 1,000 centres."""
    centres = np.random.default_rng(0).standard_normal((1000, dimension), np.float32)
    for block in range(0, count, 10_000):
        draw = np.random.default_rng([seed, block])
        size = min(10_000, count - block)
        drawn = centres[draw.integers(0, 1000, size)] + 0.7 * draw.standard_normal((size, dimension), np.float32)
        yield drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def build_vectors(kind: str, count: int, dimension: int, folder: Path) -> dict[str, Any]:
    """Builds an index file as an index folder has it."""
    from searchgym.corpora.retrieval.parts import quiet
    from searchgym.corpora.retrieval.vectors import build_faiss

    raw = folder / "vectors.f32"
    with raw.open("wb") as file:
        for block in vectors(count, dimension, 1):
            file.write(block.astype(np.float32).tobytes())
    started = time.perf_counter()
    build_faiss(raw, count, dense_card(kind, dimension), folder / "index.faiss", quiet)
    raw.unlink()
    return built(started, folder)


def dense_card(kind: str, dimension: int) -> Any:
    """Returns a card whose encoder is not asked."""
    return find_retriever(
        {"kind": "dense", "index": kind, "encoder": {"name": "none", "model": "none", "dimension": dimension}}
    )


def search_vectors(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measures FAISS's search as a retriever calls it, without the encoder."""
    import faiss

    from searchgym.corpora.retrieval.vectors import open_faiss

    index = open_faiss(folder / "index.faiss", dense_card(folder.name, args.dimension))
    asked = np.concatenate(list(vectors(args.queries, args.dimension, 2)))
    names = [str(i) for i in range(len(asked))]

    def search(batch: Sequence[str], threads: int) -> list[list[str]]:
        faiss.omp_set_num_threads(threads)
        first = int(batch[0])
        _, found = index.search(asked[first : first + len(batch)], K)
        return [[str(i) for i in row] for row in found]

    return measure(search, names, args.runs)[1]


# -- projection ----------------------------------------------------------------------------------------------------


def projections(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what each engine would take for all of Wikipedia."""
    projected = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        own = sorted((row for row in rows if row["engine"] == engine), key=lambda row: int(row["passages"]))
        if len(own) < 2:
            continue
        small, large = own[-2:]
        growth = WIKIPEDIA / large["passages"]
        new = {"engine": engine, "build_h": round(large["build_s"] * growth / 3600, 1)}
        new["index_gib"] = round(large["index_mib"] * growth / 1024, 1)
        for name in ("rss_gib", "qps_b1_t1", "qps_b256_t2"):
            exponent = math.log(large[name] / small[name]) / math.log(large["passages"] / small["passages"])
            new[name] = round(large[name] * growth**exponent, 2)
        projected.append(new)
    return projected


if __name__ == "__main__":
    main()
