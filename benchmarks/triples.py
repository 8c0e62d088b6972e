"""Loads a large file of generated triples: seconds, memory and chains per second by number of triples.

python benchmarks/triples.py --millions 1 2 5
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

from searchgym.cli.output import emit_rows

RELATIONS = 800
"""Number of relations, as in Wikidata5M."""
SHARE = 0.22
"""Entities per triple, as in Wikidata5M: 4.6 million in 20.6 million."""


def write(path: Path, count: int, seed: int) -> None:
    """Writes triples whose relations and objects are as uneven as in real graphs."""
    rng = np.random.default_rng(seed)
    nodes = max(2, int(count * SHARE))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, count, 1_000_000):
            size = min(1_000_000, count - start)
            subjects = rng.integers(0, nodes, size)
            objects = (nodes * rng.random(size) ** 2).astype(int)
            relations = (RELATIONS * rng.random(size) ** 3).astype(int)
            file.writelines(f"Q{s}\tP{r}\tQ{o}\n" for s, r, o in zip(subjects, relations, objects, strict=True))


def load(path: Path) -> None:
    """Loads a file and prints seconds, MiB and chains per second."""
    from searchgym.questions.graphs.triples import read_triples

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    started = time.perf_counter()
    graph = read_triples(path)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rng, began, walks, found = Random(1), time.perf_counter(), 0, 0
    while time.perf_counter() - began < 5:
        walks += 1
        found += graph.walk(rng, 1 + walks % 4) is not None
    rate = found / (time.perf_counter() - began)
    sys.stdout.write(f"{len(graph)} {len(graph.names)} {seconds:.1f} {peak} {peak - before} {rate:.0f}\n")


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 5], help="millions of triples")
    parser.add_argument("--seed", type=int, default=0, help="seed of the triples")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        load(args.load)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for millions in args.millions:
            path = Path(folder) / "triples.tsv"
            write(path, int(millions * 1e6), args.seed)
            told = subprocess.run(
                [sys.executable, __file__, "--load", path], capture_output=True, text=True, check=True
            )
            facts, nodes, seconds, peak, added, rate = told.stdout.split()
            row = {"millions": millions, "facts": facts, "entities": nodes, "seconds": seconds}
            rows.append(row | {"peak_mib": peak, "added_mib": added, "chains_per_second": rate})
    emit_rows(rows, args.json, "triples")


if __name__ == "__main__":
    main()
