"""Speed and memory of BM25 in process, of Lucene (pyserini's searcher, called directly), and of FAISS indexes.

Passages and questions are real or generated; vectors are drawn from 1,000 Gaussian clusters, for time and size only,
since recall on such vectors means nothing (see retrieval_quality.py).

Each engine builds in one process and searches in another, so that memory is counted separately. All BM25 engines index
title and text of the same passages with the same analysis, k1 0.9 and b 0.4, and answer the same questions. Timings of
the retriever cards `bm25` and `lucene` include fetching the passages, those of `pyserini` end with document ids.
Resident memory is read after all questions were asked once, and includes pages of mapped files. Needs the extras
`lucene` and `dense`, and a JDK:

    python benchmarks/retrieval.py --sizes 100000 1000000 --vectors 1000000
    python benchmarks/retrieval.py --corpus wiki.jsonl --questions questions.jsonl --vectors 0
    python benchmarks/retrieval.py --sizes --vectors 1000000 --dimension 768 --devices cpu cuda:0 --kinds flat ivf-sq8

With `--devices`, the vectors are searched on each device (a GPU needs the extra `gpu`); `overlap` is the mean share of
the first hits in common with the first device, `same_first` the share of questions with the same first hit.
"""

from __future__ import annotations

import argparse
import functools
import importlib
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
from typing import Any, Final, TypeVar, cast

import generated
import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.corpora import open_corpus, read_queries
from searchgym.errors import UsageError
from searchgym.options.cards import EncoderCard
from searchgym.records import Passage
from searchgym.retrieval import CorpusRetriever, build_index, load_index
from searchgym.retrieval.bm25.search import contents
from searchgym.retrieval.kinds.dense import DenseCard

T = TypeVar("T")
Source = int | str
"""Source of passages: a number of generated ones, or a corpus."""
Search = Callable[[Sequence[str], int], list[list[str]]]
"""Function of queries and a number of threads that returns the ids of each query's first hits."""
ENGINES: Final = ("bm25", "pyserini", "lucene")
K: Final = 10
BATCHES: Final = (1, 16, 256)
THREADS: Final = (1, 2)
BLOCK: Final = 10_000
"""Number of vectors drawn at once."""
WIKIPEDIA: Final = 21_015_324
"""Number of passages in the Wikipedia corpus that search agents are usually trained on."""


def main() -> None:
    """Measures every engine and prints the tables."""
    args = parse_args()
    rows: list[dict[str, Any]] = []
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        sources: list[Source] = [args.corpus] if args.corpus else args.sizes
        for source in sources:
            own = text_rows(source, Path(folder), args)
            show(own, args, f"BM25, {args.corpus or 'generated'}, {own[0]['passages']} passages")
            rows += own
        dense = [row for kind in args.kinds for row in vector_rows(kind, args, Path(folder))] if args.vectors else []
    projected = [] if args.corpus else projections(rows)
    if args.json:
        print(json.dumps({"bm25": rows, "vectors": dense, "projection": projected}))
    else:
        show(dense, args, f"{args.vectors} vectors of {args.dimension} numbers")
        show(projected, args, f"projected to {WIKIPEDIA} passages (see --help)")


def parse_args() -> argparse.Namespace:
    """Parses the command-line arguments."""
    projection = (
        "The projection draws a power law through the two largest sizes of each engine, for seconds per question and "
        "for resident memory; bytes and build time grow in proportion to passages."
    )
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=projection, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[100_000, 1_000_000], help="numbers of generated passages"
    )
    parser.add_argument("--corpus", help="corpus file or folder, instead of generated passages")
    parser.add_argument("--questions", help="file of questions on that corpus")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--queries", type=int, default=1024, help="number of questions to ask; memory needs 1,000")
    parser.add_argument("--runs", type=int, default=3, help="number of timed runs, after one warm-up run")
    parser.add_argument("--vectors", type=int, default=1_000_000, help="number of vectors; 0 leaves FAISS out")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--kinds", nargs="*", default=["flat", "ivf-sq8", "hnsw"])
    parser.add_argument("--lists", type=int, default=0, help="lists of ivf-sq8; 0: as many as an index has by default")
    parser.add_argument("--devices", nargs="+", default=["cpu"], help="where FAISS searches: cpu, cuda, cuda:N")
    parser.add_argument("--float16", action="store_true", help="store the vectors of flat on a GPU in half precision")
    parser.add_argument("--folder", type=Path, help="where to put corpora and indexes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.vectors:
        check_devices(args, parser)
    if (args.corpus is None) != (args.questions is None):
        parser.error("--corpus and --questions belong together")
    return args


def show(rows: Sequence[dict[str, Any]], args: argparse.Namespace, title: str) -> None:
    """Prints rows as a table, unless JSON was requested."""
    if rows:
        emit_rows(rows, False, "rows", title) if not args.json else print(json.dumps(rows), file=sys.stderr)


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a fresh process, whose standard output (Java prints) goes to standard error."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.dup2, initargs=(2, 1)) as pool:
        return pool.submit(function, *arguments).result()


# -- text ----------------------------------------------------------------------------------------------------------


def text_rows(source: Source, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures each BM25 engine on a source of passages; returns one row per engine."""
    size = source if isinstance(source, int) else sum(1 for _ in passages(source))
    questions = generated.queries(args.queries, size) if isinstance(source, int) else asked(args)
    found: dict[str, list[list[str]]] = {}
    rows = []
    for name in args.engines:
        build, search = (build_lucene, search_lucene) if name == "pyserini" else (build_ours, search_ours)
        index = folder / f"{name}-{size}"
        print(f"{name}, {size} passages: building ...", file=sys.stderr)
        built = apart(build, name, source, index)
        print(f"{name}, {size} passages: searching ...", file=sys.stderr)
        found[name], measured = apart(search, name, index, questions, args)
        rows.append({"engine": name, "passages": size, "questions": len(questions), **built, **measured})
    if "pyserini" not in found:
        return rows
    return [row | agreement(found[row["engine"]], found["pyserini"]) for row in rows]


def passages(source: Source) -> Iterator[Passage]:
    """Yields the passages of a source, generated or read from its corpus."""
    return generated.passages(source) if isinstance(source, int) else open_corpus(source)


def asked(args: argparse.Namespace) -> list[str]:
    """Returns the first questions of the file given."""
    return list(read_queries(args.questions).values())[: args.queries]


def agreement(ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the mean share of hits in common with pyserini's, and of questions whose first hit is the same."""
    pairs = list(zip(ours, theirs, strict=True))
    common = [len(set(a) & set(b)) / max(len(a), len(b)) if a or b else 1.0 for a, b in pairs]
    same = [float(a[:1] == b[:1]) for a, b in pairs]
    return {"overlap": round(statistics.mean(common), 4), "same_first": round(statistics.mean(same), 4)}


def build_ours(name: str, source: Source, index: Path) -> dict[str, Any]:
    """Builds an index folder and returns time, size and memory of the build."""
    started = time.perf_counter()
    build_index(passages(source), index, name)
    return built(started, index)


def build_lucene(name: str, source: Source, index: Path) -> dict[str, Any]:
    """Builds a Lucene index with pyserini's indexer on all cores; returns time, size and memory of the build."""
    from searchgym.retrieval.lucene.java import start_java

    start_java("4g")
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # pyserini does not import without one
    from pyserini.index.lucene import LuceneIndexer

    started = time.perf_counter()
    indexer = LuceneIndexer(str(index), threads=os.cpu_count() or 1)
    batch: list[dict[str, str]] = []
    for passage in passages(source):
        batch.append({"id": passage.id, "contents": contents(passage)})
        if len(batch) == 10_000:
            indexer.add_batch_dict(batch)
            batch = []
    indexer.add_batch_dict(batch)
    indexer.close()
    return built(started, index)


def built(started: float, index: Path) -> dict[str, Any]:
    """Returns time, size and memory of a build."""
    size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "build_s": round(time.perf_counter() - started, 1),
        "build_gib": round(peak, 2),
        "index_mib": round(size / 2**20),
    }


def search_ours(name: str, index: Path, questions: Sequence[str], args: argparse.Namespace) -> Any:
    """Measures a retriever over an index folder; returns its hits and figures."""

    @functools.cache  # opened on first use, so that memory is that of one
    def opened(threads: int) -> CorpusRetriever:
        return load_index(index, card={"kind": name, "threads": threads})

    def search(batch: Sequence[str], threads: int) -> list[list[str]]:
        return [[hit.passage.id for hit in hits] for hits in opened(threads).search(batch, K)]

    return measure(search, questions, args.runs)


def search_lucene(name: str, index: Path, questions: Sequence[str], args: argparse.Namespace) -> Any:
    """Measures pyserini's searcher; returns its hits and figures."""
    from searchgym.retrieval.lucene.java import start_java

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
    """Times a search function; returns the hits, and medians over runs of queries per second and latencies."""
    hits = [found for batch in batches(questions, 256) for found in search(batch, THREADS[-1])]
    row: dict[str, Any] = {"rss_gib": round(resident() / 2**30, 2)}
    for threads in THREADS:
        for size in BATCHES:
            if size == 1 and threads != THREADS[0]:
                continue  # a single question uses one thread
            few = questions if size > 1 else questions[:256]
            times = [timed(search, few, size, threads) for _ in range(runs + 1)][1:]
            row[f"qps_b{size}_t{threads}"] = round(statistics.median(len(few) / sum(run) for run in times), 1)
            if size == 1:
                every = sorted(1000 * seconds for run in times for seconds in run)
                row |= {"p50_ms": round(statistics.median(every), 2), "p99_ms": round(np.percentile(every, 99), 2)}
    return hits, row


def timed(search: Search, questions: Sequence[str], size: int, threads: int) -> list[float]:
    """Searches the questions in batches; returns the seconds of each call."""
    seconds = []
    for batch in batches(questions, size):
        started = time.perf_counter()
        search(batch, threads)
        seconds.append(time.perf_counter() - started)
    return seconds


def batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yields the items in batches of a size."""
    return (items[at : at + size] for at in range(0, len(items), size))


def resident() -> int:
    """Returns the resident memory of this process in bytes, including mapped files."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Rss:"))


# -- vectors -------------------------------------------------------------------------------------------------------


def check_devices(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends with an error if a device is not there, or does not search one of the kinds: before anything is built."""
    from searchgym.retrieval.dense.gpu import check_gpu

    for kind in args.kinds:
        for device in args.devices:
            try:
                check_gpu(dense_card(kind, args, device))
            except UsageError as error:
                parser.error(str(error))


def vector_rows(kind: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures one kind of FAISS index; returns a row per device."""
    index = folder / kind
    index.mkdir()
    print(f"{kind}, {args.vectors}: building ...", file=sys.stderr)
    built = apart(build_vectors, dense_card(kind, args), args.vectors, index)
    rows, hits = [], list[list[list[str]]]()
    for device in args.devices:
        print(f"{kind}, {args.vectors}, {device}: searching ...", file=sys.stderr)
        found, measured = apart(search_vectors, index, device, args)
        hits.append(found)
        same = agreement(found, hits[0]) if len(args.devices) > 1 else {}
        rows.append({"index": kind, "device": device, "vectors": args.vectors, **built, **measured, **same})
    return rows


def vectors(count: int, dimension: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of random float32 unit vectors, clustered around 1,000 centres."""
    centres = np.random.default_rng(0).standard_normal((1000, dimension), np.float32)
    for block in range(0, count, BLOCK):
        draw = np.random.default_rng([seed, block])
        size = min(BLOCK, count - block)
        drawn = centres[draw.integers(0, 1000, size)] + 0.7 * draw.standard_normal((size, dimension), np.float32)
        yield drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def build_vectors(card: DenseCard, count: int, folder: Path) -> dict[str, Any]:
    """Builds a FAISS index as index folders contain it; returns time, size and memory of the build."""
    from searchgym.retrieval.cards import quiet
    from searchgym.retrieval.dense.vectors import finish_vectors, write_index, write_vectors

    drawn, dimension = folder / "vectors.faiss", card.encoder.dimension
    for number, block in enumerate(vectors(count, dimension, 1)):
        write_vectors(drawn, number * BLOCK, block)
    finish_vectors(drawn, count, dimension)
    started = time.perf_counter()
    write_index(card, drawn, folder / "index.faiss", quiet)
    drawn.unlink()
    return built(started, folder)


def dense_card(kind: str, args: argparse.Namespace, device: str = "cpu") -> DenseCard:
    """Returns a retriever card for vectors only, whose encoder is never called."""
    encoder = EncoderCard(name="none", model="none", dimension=args.dimension)
    lists = args.lists if kind == "ivf-sq8" else 0
    return DenseCard(index=cast(Any, kind), encoder=encoder, lists=lists, device=device, float16=args.float16)


def search_vectors(folder: Path, device: str, args: argparse.Namespace) -> tuple[list[list[str]], dict[str, Any]]:
    """Measures FAISS's search as a retriever calls it, but without the encoder; returns its hits and figures."""
    faiss: Any = importlib.import_module("faiss")
    from searchgym.retrieval.dense.gpu import copy_to_gpus
    from searchgym.retrieval.dense.vectors import open_index

    card = dense_card(folder.name, args, device)
    index: Any = open_index(folder / "index.faiss")
    parameters = None
    if card.index == "ivf-sq8":
        index.nprobe = min(card.nprobe, index.nlist)
    elif card.index == "hnsw":
        parameters = faiss.SearchParametersHNSW(efSearch=card.ef_search)
    started = time.perf_counter()
    if device != "cpu":
        index = copy_to_gpus(index, card)
    copied = {} if device == "cpu" else {"copy_s": round(time.perf_counter() - started, 1)}
    questions = np.concatenate(list(vectors(args.queries, args.dimension, 2)))
    names = [str(i) for i in range(len(questions))]

    def search(batch: Sequence[str], threads: int) -> list[list[str]]:
        faiss.omp_set_num_threads(threads)
        first = int(batch[0])
        _, found = index.search(questions[first : first + len(batch)], K, params=parameters)
        return [[str(i) for i in row] for row in found]

    hits, figures = measure(search, names, args.runs)
    return hits, figures | copied


# -- projection ----------------------------------------------------------------------------------------------------


def projections(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the projected time, size and memory of each engine for all of Wikipedia."""
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
