"""Generated worlds: build time, scores of simple baselines and retrieval, over levels, splits and seeds.

python benchmarks/worlds.py [--size 2000] [--seeds 3] [--json]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from searchgym.cli.output import emit_rows
from searchgym.options import read
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.report import report_of
from searchgym.questions.worlds.schema import LEVELS, SPLITS, WorldSpec


def main() -> None:
    """Builds and measures the worlds, and prints one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2000, help="number of questions per world")
    parser.add_argument("--seeds", type=int, default=3, help="number of worlds per level and split")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = []
    for level in LEVELS:
        for split in SPLITS:
            print(f"{level}, {split} ...", file=sys.stderr)
            for seed in range(args.seeds):
                given = {"level": level, "size": args.size, "seed": seed, "split": split}
                rows.append(measure(read(WorldSpec, given, "the world")))
    emit_rows(rows, args.json, "results", f"{args.size} questions per world; floors on multi-hop, answer not named")


def measure(spec: WorldSpec) -> dict[str, Any]:
    """Builds one world and returns its row of the table."""
    started = time.perf_counter()
    world = build_world(spec)
    seconds = round(time.perf_counter() - started, 2)
    report = report_of(world)
    floors, found = report["floors"]["multi_hop_unnamed"], report["retrieval"]
    return {
        "level": spec.level,
        "split": spec.split,
        "seed": spec.seed,
        "pages": report["pages"],
        "words": report["words_per_page"],
        "build_s": seconds,
        "closed_book": floors["closed_book"],
        "majority": floors["majority_of_type"],
        "single_search": floors["single_search"],
        "named": report["floors"]["named"]["closed_book"],
        "recall@5": found["recall@5"],
        "two_pages": found["recall@5_of_two_pages"],
        "both@5": found["both_gold@5"],
        "all_gold@3": found["all_gold@3_of_multi_hop_unnamed"],
        "strata": list(found["strata"].values()),
    }


if __name__ == "__main__":
    main()
