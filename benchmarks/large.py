"""BM25 at the size of Wikipedia: an index of 21 million generated passages, built from a stream and searched from disk.

    python benchmarks/large.py build [--passages 21015324] [--folder runs/large]      # goes on where it was killed
    python benchmarks/large.py search [--questions 256] [--runs 3]                    # cold, warm, in process, served
    python benchmarks/large.py check [--questions 64]                                 # against a scan of all passages

The passages are those of `generated.py`: they are drawn again wherever they are needed, and never written but into the
index. `build` prints seconds, the largest resident memory, and the most disk space that was used at any time. `search`
first asks the system to forget the index's files, and asks the first batch cold. `check` computes the scores of every
passage by the formula from the numbers of the generated words, without text, analysis or postings, and compares ids.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import generated
import numpy as np

from searchgym.cli.output import emit, emit_rows
from searchgym.retrieval import CorpusRetriever, HttpRetriever, build_index, load_index
from searchgym.retrieval.bm25.analysis import analyse
from searchgym.retrieval.bm25.build import K1, B

K: Final = 10
BATCHES: Final = (1, 64, 256)
THREADS: Final = (1, 2)
SECONDS: Final = 5.0
"""Seconds between two looks at the disk."""


def main() -> None:
    """Runs one of the parts and prints what it measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("build", "search", "check"))
    parser.add_argument("--passages", type=int, default=21_015_324)
    parser.add_argument("--folder", type=Path, default=Path("runs/large"))
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.part == "build":
        emit(build(args), args.json, f"an index of {args.passages:,} passages")
    elif args.part == "search":
        emit_rows(search(args), args.json, "search", f"{args.passages:,} passages, medians of {args.runs} runs")
    else:
        emit(check(args), args.json, "against a scan of all passages")


# -- build ---------------------------------------------------------------------------------------------------------


def build(args: argparse.Namespace) -> dict[str, Any]:
    """Builds the index and returns time, memory and disk space."""
    args.folder.mkdir(parents=True, exist_ok=True)
    most, ended, stages = [0], threading.Event(), dict[str, float]()
    started = time.perf_counter()

    def look() -> None:
        while not ended.wait(SECONDS):
            most[0] = max(most[0], used(args.folder))

    def progress(stage: str, done: int, total: int) -> None:
        now = time.perf_counter() - started
        if stage not in stages or done == total or (not total and done % 1_000_000 == 0):
            print(f"{now:7.0f} s  {stage} {done:,} of {total or args.passages:,}", file=sys.stderr)
        stages[stage] = now

    watching = threading.Thread(target=look)
    watching.start()
    try:
        build_index(generated.passages(args.passages), args.folder / "index", "bm25", progress=progress)
    finally:
        ended.set()
        watching.join()
    return {
        "seconds": round(time.perf_counter() - started),
        "stages end at, s": {stage: round(end) for stage, end in stages.items()},
        "peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "index GiB": round(used(args.folder) / 2**30, 2),
        "most disk GiB": round(max(most[0], used(args.folder)) / 2**30, 2),
    }


def used(folder: Path) -> int:
    """Returns the bytes of all files in a folder, some of which may just be deleted."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


# -- search --------------------------------------------------------------------------------------------------------


def search(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures questions per second cold and warm, in process and served."""
    questions = generated.queries(args.questions, args.passages)
    forget(args.folder / "index")
    began = time.perf_counter()
    retriever = load_index(args.folder / "index", card={"kind": "bm25", "threads": THREADS[-1]})
    print(f"loaded, cold, in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    forget(args.folder / "index")
    rows = [row("cold", retriever, questions, len(questions), 1)]
    for threads in THREADS:
        retriever = load_index(args.folder / "index", card={"kind": "bm25", "threads": threads})
        sizes = BATCHES if threads == THREADS[0] else BATCHES[1:]  # a single question uses one thread
        rows += [row(f"warm, {threads} threads", retriever, questions, size, args.runs) for size in sizes]
    del retriever
    return rows + served(args, questions)


def served(args: argparse.Namespace, questions: Sequence[str]) -> list[dict[str, Any]]:
    """Measures the retrieval server in a process of its own."""
    command = [sys.executable, "-m", "searchgym", "serve", "retriever", str(args.folder / "index"), "--port", "8765"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = HttpRetriever("http://127.0.0.1:8765")
        client.wait(600)
        rows = [row("served", client, questions, size, args.runs) for size in BATCHES]
        return [each | {"resident GiB": None} for each in rows]  # that of the client says nothing of the server
    finally:
        server.terminate()
        server.wait()


def row(
    what: str, retriever: CorpusRetriever | HttpRetriever, questions: Sequence[str], size: int, runs: int
) -> dict[str, Any]:
    """Returns the median of questions per second over runs, after an uncounted one unless cold; and memory."""
    rates, seconds = [], []
    for number in range(runs + (what != "cold")):
        began = time.perf_counter()
        for at in range(0, len(questions), size):
            asked = time.perf_counter()
            retriever.search(questions[at : at + size], K)
            seconds.append(time.perf_counter() - asked)
        if number or what == "cold":
            rates.append(len(questions) / (time.perf_counter() - began))
    calls = len(seconds) // (runs + (what != "cold")) * runs
    return {
        "what": what,
        "batch": size,
        "questions/s": round(statistics.median(rates), 1),
        "p50 ms": round(1000 * statistics.median(seconds[-calls:]), 1),
        "resident GiB": resident(),
    }


def forget(folder: Path) -> None:
    """Asks the system to drop its copies of a folder's files from memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident() -> float:
    """Returns the resident memory of this process in GiB, including mapped files."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**30, 2)


# -- check ---------------------------------------------------------------------------------------------------------


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Compares the hits of some questions with those of a scan over all passages."""
    questions = generated.queries(args.questions, args.passages)
    expected = scan(questions, args.passages)
    hits = load_index(args.folder / "index").search(questions, K)
    wrong = [
        n for n, (found, right) in enumerate(zip(hits, expected, strict=True)) if [h.passage.id for h in found] != right
    ]
    return {"questions": len(questions), "different": len(wrong), "examples": [questions[n] for n in wrong[:3]]}


def scan(questions: Sequence[str], passages: int) -> list[list[str]]:
    """Returns the ids of each question's best passages, by the score of every passage.

    A first pass counts in how many passages each term occurs, and the terms of all passages; a second one scores.
    """
    words = generated.vocabulary()
    terms_of = [analyse(word) for word in words]
    sizes = np.array([len(terms) for terms in terms_of], np.int32)
    if sizes.max() > 1:
        raise SystemExit("a generated word has several terms: the scan counts one")
    asked = [Counter(analyse(question)) for question in questions]
    columns = {term: n for n, term in enumerate(dict.fromkeys(term for bag in asked for term in bag))}
    column = np.array([columns.get(terms[0], -1) if terms else -1 for terms in terms_of], np.int32)
    frequencies, total = np.zeros(len(columns), np.int64), 0
    for _, lengths, (_, cols, _) in blocks(passages, sizes, column):
        frequencies += np.bincount(cols, minlength=len(columns))
        total += int(lengths.sum())
    weights = np.log(1 + (passages - frequencies + 0.5) / (frequencies + 0.5))
    best: list[list[tuple[float, int]]] = [[] for _ in questions]
    for start, lengths, (rows, cols, counts) in blocks(passages, sizes, column):
        penalties = K1 * (1 - B + B * (lengths / (total / passages)))
        parts = (weights[cols] * (counts / (counts + penalties[rows]))).astype(np.float32)
        by_term = np.zeros((len(columns), len(lengths)), np.float32)
        by_term[cols, rows] = parts
        for number, bag in enumerate(asked):
            scores = np.zeros(len(lengths), np.float32)
            for term, repeats in bag.items():
                scores += np.float32(repeats) * by_term[columns[term]]
            top = np.argsort(-scores, kind="stable")[:K]
            best[number] += [(-float(scores[n]), start + int(n)) for n in top if scores[n] > 0]
            best[number] = sorted(best[number])[:K]
    return [[str(position) for _, position in found] for found in best]


def blocks(passages: int, sizes: np.ndarray, column: np.ndarray) -> Any:
    """Yields of each block the first passage, numbers of terms, and (passage, term, count) of what is asked."""
    text = generated.Text()
    for block in range(-(-passages // generated.BLOCK)):
        start, length = block * generated.BLOCK, min(generated.BLOCK, passages - block * generated.BLOCK)
        ids, starts = text.words(block)
        ids = ids[: starts[length]]
        rows = np.repeat(np.arange(length), np.diff(starts[: length + 1]))
        lengths = np.bincount(rows, sizes[ids], minlength=length).astype(np.int64)
        there = column[ids] >= 0
        pairs, counts = np.unique(rows[there].astype(np.int64) * len(column) + column[ids[there]], return_counts=True)
        yield start, lengths, (pairs // len(column), pairs % len(column), counts)


if __name__ == "__main__":
    main()
