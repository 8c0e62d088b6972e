"""BM25 beside Lucene (pyserini) on the same passages and questions: overlap of the top hits, speed, memory, build time.

Both index title and text of each passage with k1 0.9 and b 0.4; each builds and searches in processes of its own. What
is timed ends with passages here, with document ids there. Needs pyserini and a JDK:

    pip install 'searchgym[lucene]'
    python benchmarks/bm25_parity.py --corpus CORPUS --questions QUESTIONS --json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from searchgym.cli.output import emit_rows
from searchgym.corpora.files import write_jsonl
from searchgym.corpora.passages import read_passages
from searchgym.corpora.questions import read_queries
from searchgym.corpora.retrieval.bm25 import contents
from searchgym.corpora.retrieval.bm25_build import K1, B
from searchgym.corpora.retrieval.build import build_index
from searchgym.corpora.retrieval.index import load_index

JDK = 21
"""Oldest Java that pyserini 1.6 runs on."""
JVM_FOLDERS = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt",
    "/Library/Java/JavaVirtualMachines",
    "~/.jdks",
    "~/.sdkman/candidates/java",
)
"""Where JDKs are installed, beside JAVA_HOME."""
BATCH = 256

T = TypeVar("T")
Search = Callable[[Sequence[str]], list[list[str]]]
"""From queries to the ids of each one's top hits."""


def main() -> None:
    """Measures and prints."""
    args = parse_args()
    if importlib.util.find_spec("pyserini") is None:
        raise SystemExit(f"pyserini is not installed: pip install 'searchgym[lucene]', and a JDK {JDK} or newer")
    java = find_jdk()
    queries = list(read_queries(args.questions).values())[: args.limit]
    rows: list[dict[str, Any]] = []
    found: list[list[list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, build, search in (("searchgym", build_ours, search_ours), ("pyserini", build_lucene, search_lucene)):
            index = Path(folder) / name
            print(f"{name}: building ...", file=sys.stderr)
            seconds = apart(java, build, args.corpus, index)
            print(f"{name}: searching ...", file=sys.stderr)
            hits, measured = apart(java, search, index, queries, args)
            found.append(hits)
            rows.append({"engine": name, "build_s": round(seconds, 2), **measured})
    pairs = list(zip(*found, strict=True))
    result = {
        "queries": len(queries),
        "k": args.k,
        "overlap": round(statistics.mean(overlap(a, b) for a, b in pairs), 4),
        "same_first": round(statistics.mean(a[:1] == b[:1] for a, b in pairs), 4),
    }
    if args.json:
        print(json.dumps(result | {"engines": rows}))
    else:
        title = ", ".join(f"{key} {value}" for key, value in result.items())
        emit_rows(rows, False, "engines", f"{title}; medians of {args.runs} runs over {args.timed} queries")


def parse_args() -> argparse.Namespace:
    """Reads the arguments; the data folder gives the defaults."""
    data = os.environ.get("SEARCHGYM_DATA")
    corpus = Path(data) / "2wikimultihopqa" / "corpus.json" if data else None
    questions = Path(data) / "hotpotqa" / "dev_simplified.json" if data else None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=corpus, required=corpus is None)
    parser.add_argument("--questions", type=Path, default=questions, required=questions is None)
    parser.add_argument("--limit", type=int, help="ask only the first questions")
    parser.add_argument("-k", type=int, default=10, help="hits compared")
    parser.add_argument("--runs", type=int, default=5, help="timed runs, after one that is not counted")
    parser.add_argument("--timed", type=int, default=2048, help="questions of a timed run, from the first on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def overlap(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Returns the share of hits in common, of the longer list; 1 if both found nothing."""
    longest = max(len(ours), len(theirs))
    return len(set(ours) & set(theirs)) / longest if longest else 1.0


# -- processes and Java --------------------------------------------------------------------------------------------


def apart(java: Path, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a fresh process, where what Java prints goes to standard error."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare, initargs=(java,)) as pool:
        return pool.submit(function, *arguments).result()


def prepare(java: Path) -> None:
    """Sets up a process: standard output is the table's alone, and pyserini asks for two variables."""
    os.dup2(2, 1)
    os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # pyserini does not import without one


def find_jdk() -> Path:
    """Returns the newest JDK that has what pyserini needs."""
    places = [Path(folder).expanduser() for folder in JVM_FOLDERS]
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += [home for place in places for pattern in ("*", "*/Contents/Home") for home in place.glob(pattern)]
    fit = [(java_version(home), home) for home in homes]
    version, home = max(fit, default=(0, Path()))
    if version < JDK:
        raise SystemExit(
            f"no JDK {JDK} or newer with the module jdk.incubator.vector in JAVA_HOME, {', '.join(JVM_FOLDERS)}: "
            f"install one (Debian: openjdk-{JDK}-jdk; elsewhere: adoptium.net), set JAVA_HOME if it is elsewhere"
        )
    return home


def java_version(home: Path) -> int:
    """Returns the feature release of a JDK; 0 if it is none or lacks the vector module."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return 0
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(version[1]) if version and "jdk.incubator.vector" in release else 0


def resident_mb() -> float | None:
    """Returns this process's resident memory in MB; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# -- the two engines -----------------------------------------------------------------------------------------------


def build_ours(corpus: Path, folder: Path) -> float:
    """Builds an index folder; returns seconds."""
    started = time.perf_counter()
    build_index(read_passages(corpus), folder)
    return time.perf_counter() - started


def build_lucene(corpus: Path, folder: Path) -> float:
    """Builds a Lucene index as pyserini's guide does; returns seconds, the start of Java included."""
    started = time.perf_counter()
    rows = ({"id": passage.id, "contents": contents(passage)} for passage in read_passages(corpus))
    write_jsonl(folder / "documents" / "all.jsonl", rows)
    options = {
        "collection": "JsonCollection",
        "generator": "DefaultLuceneDocumentGenerator",
        "input": folder / "documents",
        "index": folder / "index",
        "threads": os.cpu_count(),
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    subprocess.run([sys.executable, "-m", "pyserini.index.lucene", *words], check=True)
    return time.perf_counter() - started


def search_ours(
    folder: Path, queries: Sequence[str], args: argparse.Namespace
) -> tuple[list[list[str]], dict[str, Any]]:
    """Returns everyone's top hits and the measurements."""

    def load() -> tuple[Search, Search]:
        retriever = load_index(folder)

        def search(batch: Sequence[str]) -> list[list[str]]:
            return [[hit.passage.id for hit in hits] for hits in retriever.search(batch, args.k)]

        return search, search

    return measure(load, queries, args)


def search_lucene(
    folder: Path, queries: Sequence[str], args: argparse.Namespace
) -> tuple[list[list[str]], dict[str, Any]]:
    """Returns everyone's top hits and the measurements."""
    from pyserini.search.lucene import LuceneSearcher  # pyright: ignore[reportMissingImports]

    def load() -> tuple[Search, Search]:
        searcher = LuceneSearcher(str(folder / "index"))
        searcher.set_bm25(K1, B)

        def single(batch: Sequence[str]) -> list[list[str]]:
            return [[hit.docid for hit in searcher.search(query, k=args.k)] for query in batch]

        def many(batch: Sequence[str]) -> list[list[str]]:
            ids = [str(number) for number in range(len(batch))]
            found = searcher.batch_search(list(batch), ids, k=args.k, threads=os.cpu_count() or 1)
            return [[hit.docid for hit in found[i]] for i in ids]

        return single, many

    return measure(load, queries, args)


def measure(
    load: Callable[[], tuple[Search, Search]], queries: Sequence[str], args: argparse.Namespace
) -> tuple[list[list[str]], dict[str, Any]]:
    """Loads an engine and searches with it, one by one and in batches.

    Args:
        load: Opens the index; returns how to search one query and how to search a batch.
        queries: All questions.
        args: `runs` and `timed`.

    Returns:
        Top hits of all queries, asked in batches; queries per second, and memory in MB: what opening the index and
        searching added, and the whole process.
    """
    before, started = resident_mb(), time.perf_counter()
    single, many = load()
    load_s = time.perf_counter() - started
    hits = [ids for i in range(0, len(queries), BATCH) for ids in many(queries[i : i + BATCH])]
    timed = queries[: args.timed]
    rates: dict[str, float] = {}
    for name, search, size in (("qps_1", single, 1), (f"qps_{BATCH}", many, BATCH)):
        seconds = []
        for _ in range(args.runs + 1):
            started = time.perf_counter()
            for i in range(0, len(timed), size):
                search(timed[i : i + size])
            seconds.append(time.perf_counter() - started)
        rates[name] = round(len(timed) / statistics.median(seconds[1:]))
    after = resident_mb()
    memory = None if before is None or after is None else round(after - before, 1)
    process = None if after is None else round(after, 1)
    return hits, {"load_s": round(load_s, 3), **rates, "added_mb": memory, "process_mb": process}


if __name__ == "__main__":
    main()
