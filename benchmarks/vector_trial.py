"""Which index of compressed vectors on disk should a corpus of millions of passages have?

    python benchmarks/vector_trial.py [--vectors 1000000] [--kinds sq8 sq4 pq rabitq4 usearch diskann] [--json]
    python benchmarks/vector_trial.py --texts FILE ...      # encoded by `minilm-package`, one text per line

`sq8`, `sq4`, `pq` and `rabitq4` are FAISS's inverted lists with 8 bits a number, 4 bits a number, product quantization
of 4 numbers to a byte, and RaBitQ with 4 bits a number, all memory-mapped. `usearch` is a graph over vectors of int8,
memory-mapped; `diskann` is DiskANN's package with vectors on disk in as many bytes as `pq`. The last two need
`pip install usearch diskannpy`. Each builds in one process and searches in another, on two threads.

Generated vectors have 1,000 Gaussian clusters: their times and sizes count, their recall says nothing of real text.
Recall is the share of the exact 10 nearest vectors that are among the 10 hits; queries of real texts are a sample of
them, which is not indexed.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt
import retrieval

from searchgym.cli.output import emit_rows
from searchgym.records import Passage
from searchgym.retrieval.cards import find_encoder
from searchgym.retrieval.encoders import load_encoder

_FAISS: Any = faiss  # untyped, for names that the type stubs lack

Floats = npt.NDArray[np.float32]
Search = Callable[[Floats, int], npt.NDArray[np.integer[Any]]]
"""Function of queries and an effort (lists or candidates to visit) that returns the positions of the hits."""
CODES: Final = {"sq8": "SQ8", "sq4": "SQ4", "pq": "PQ{quarter}", "rabitq4": "RaBitQ4"}
"""FAISS's factory strings; ``quarter`` is a fourth of the dimension."""
KINDS: Final = (*CODES, "usearch", "diskann")
EFFORTS: Final = {"usearch": (32, 64, 128), "diskann": (32, 64, 128)}
"""Efforts of each kind; inverted lists visit 16, 32 and 64 lists."""
K: Final = 10
THREADS: Final = 2
LINKS: Final = 32
"""Links per vector of the graphs."""


def main() -> None:
    """Builds and searches every kind, and prints a row per kind and effort."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--texts", type=Path, help="file with a text per line, encoded instead of generated vectors")
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--folder", help="where to put vectors and indexes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Path(folder) / "vectors.npy"
        count, queries = encoded(args, source) if args.texts else drawn(args, source)
        exact = nearest(np.load(source, mmap_mode="r"), queries)
        for kind in args.kinds:
            index = Path(folder) / kind
            index.mkdir()
            built = retrieval.apart(build, kind, source, index)
            found = retrieval.apart(searched, kind, index, queries, exact)
            rows += [{"index": kind, "vectors": count, **built, **row} for row in found]
    emit_rows(rows, args.json, "rows", f"{count:,} vectors of {queries.shape[1]} numbers")


# -- vectors -------------------------------------------------------------------------------------------------------


def drawn(args: argparse.Namespace, path: Path) -> tuple[int, Floats]:
    """Writes generated vectors, and returns their number and the queries."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (args.vectors, args.dimension))
    at = 0
    for block in retrieval.vectors(args.vectors, args.dimension, 1):
        out[at : at + len(block)] = block
        at += len(block)
    return args.vectors, np.concatenate(list(retrieval.vectors(args.queries, args.dimension, 2)))


def encoded(args: argparse.Namespace, path: Path) -> tuple[int, Floats]:
    """Writes the vectors of texts, all but the queries', and returns their number and the queries."""
    lines = dict.fromkeys(line.strip() for line in args.texts.read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line]
    encoder = load_encoder(find_encoder("minilm-package"))
    order = np.random.default_rng(0).permutation(len(texts))
    chosen, rest = order[: args.queries], order[args.queries :]
    np.save(path, encoder.encode_passages([Passage(str(n), "", texts[n]) for n in rest]))
    return len(rest), encoder.encode_queries([texts[n] for n in chosen])


def nearest(vectors: Floats, queries: Floats) -> npt.NDArray[np.int64]:
    """Returns the positions of the exact nearest vectors, (Q, K) int64."""
    scores, positions = np.full((len(queries), K), -2, np.float32), np.zeros((len(queries), K), np.int64)
    for at in range(0, len(vectors), 100_000):
        block = queries @ np.array(vectors[at : at + 100_000]).T
        top = np.argpartition(-block, min(K, block.shape[1] - 1), axis=1)[:, :K]
        scores = np.concatenate([scores, np.take_along_axis(block, top, 1)], axis=1)
        positions = np.concatenate([positions, top + at], axis=1)
        best = np.argsort(-scores, axis=1)[:, :K]
        scores, positions = np.take_along_axis(scores, best, 1), np.take_along_axis(positions, best, 1)
    return positions


# -- indexes -------------------------------------------------------------------------------------------------------


def build(kind: str, source: Path, folder: Path) -> dict[str, Any]:
    """Builds an index; returns seconds, peak memory and bytes per vector on disk."""
    vectors = np.load(source, mmap_mode="r")
    faiss.omp_set_num_threads(THREADS)
    began = time.perf_counter()
    if kind == "usearch":
        package = importlib.import_module("usearch.index")
        graph = package.Index(ndim=vectors.shape[1], metric="ip", dtype="i8", connectivity=LINKS)
        graph.add(np.arange(len(vectors)), np.array(vectors), threads=THREADS)
        graph.save(str(folder / "index"))
    elif kind == "diskann":
        importlib.import_module("diskannpy").build_disk_index(
            np.array(vectors), "l2", str(folder), 80, LINKS, 16.0, 16.0, THREADS, vectors.shape[1] // 4
        )
    else:
        build_lists(CODES[kind], vectors, folder / "index")
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"build_s": round(seconds), "build_gib": round(peak, 2), "bytes_each": round(size / len(vectors))}


def build_lists(code: str, vectors: Floats, path: Path) -> None:
    """Builds inverted lists as an index folder's: 4 times the square root of the number of vectors."""
    lists = min(4 * int(len(vectors) ** 0.5), len(vectors) // 39)
    description = f"IVF{lists},{code.format(quarter=vectors.shape[1] // 4)}"
    index = _FAISS.index_factory(vectors.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    chosen = np.sort(np.random.default_rng(0).choice(len(vectors), min(len(vectors), 64 * lists), replace=False))
    index.train(np.array(vectors[chosen]))
    for at in range(0, len(vectors), 50_000):
        index.add(np.array(vectors[at : at + 50_000]))
    faiss.write_index(index, str(path))


def searched(kind: str, folder: Path, queries: Floats, exact: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Returns recall and queries per second for each effort."""
    faiss.omp_set_num_threads(THREADS)
    search = opened(kind, folder, queries.shape[1])
    rows = []
    for effort in EFFORTS.get(kind, (16, 32, 64)):
        hits = search(queries, effort)
        recall = statistics.mean(len(set(a) & set(b)) / K for a, b in zip(hits.tolist(), exact.tolist(), strict=True))
        row = {"effort": effort, "recall": round(recall, 3)}
        rows.append(row | {f"qps_{size}": rate(search, queries, effort, size) for size in (1, 256)})
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return [row | {"resident_gib": round(pages * resource.getpagesize() / 2**30, 2)} for row in rows]


def rate(search: Search, queries: Floats, effort: int, size: int) -> float:
    """Returns the median of queries per second over three runs, after an uncounted one."""
    rates = []
    for _ in range(4):
        began = time.perf_counter()
        for batch in parts(queries, size):
            search(batch, effort)
        rates.append(len(queries) / (time.perf_counter() - began))
    return round(statistics.median(rates[1:]), 1)


def parts(queries: Floats, size: int) -> Iterator[Floats]:
    """Yields the queries in batches of a size."""
    return (queries[at : at + size] for at in range(0, len(queries), size))


def opened(kind: str, folder: Path, dimension: int) -> Search:
    """Returns the search function of an index on disk."""
    if kind == "usearch":
        graph = importlib.import_module("usearch.index").Index(
            ndim=dimension, metric="ip", dtype="i8", connectivity=LINKS
        )
        graph.view(str(folder / "index"))

        def in_graph(queries: Floats, effort: int) -> Any:
            graph.expansion_search = effort
            return np.atleast_2d(graph.search(queries, K, threads=THREADS).keys.astype(np.int64))

        return in_graph
    if kind == "diskann":
        index = importlib.import_module("diskannpy").StaticDiskIndex(str(folder), THREADS, 1000)
        return lambda queries, effort: index.batch_search(queries, K, effort, 4, THREADS).identifiers.astype(np.int64)
    lists: Any = faiss.read_index(str(folder / "index"), _FAISS.IO_FLAG_MMAP)

    def in_lists(queries: Floats, effort: int) -> Any:
        lists.nprobe = effort
        return lists.search(queries, K)[1]

    return in_lists


if __name__ == "__main__":
    main()
