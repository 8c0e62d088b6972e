"""Generated worlds: time to build, floors and retrieval, over levels, splits and seeds.

python benchmarks/worlds.py [--size 2000] [--seeds 3]
"""

from __future__ import annotations

import argparse
import time

from searchgym.cards import WorldSpec, build
from searchgym.corpora.worlds import build_world
from searchgym.corpora.worlds.schema import LEVELS, SPLITS


def main() -> None:
    """Prints one row of a Markdown table per world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2000, help="questions per world")
    parser.add_argument("--seeds", type=int, default=3, help="worlds per level and split")
    args = parser.parse_args()
    head = ("level", "split", "seed", "pages", "words", "build s", "closed", "majority", "single search", "named",
            "recall@5", "two pages", "both@5", "all gold@3", "strata")  # fmt: skip
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for level in LEVELS:
        for split in SPLITS:
            for seed in range(args.seeds):
                given = {"level": level, "size": args.size, "seed": seed, "split": split}
                print("| " + " | ".join(map(str, row(build(WorldSpec, given, "the world")))) + " |")


def row(spec: WorldSpec) -> list[object]:
    """Builds one world and returns its row."""
    started = time.perf_counter()
    world = build_world(spec)
    seconds = round(time.perf_counter() - started, 2)
    report = world.report()
    floors, found = report["floors"]["multi_hop_unnamed"], report["retrieval"]
    return [
        spec.level, spec.split, spec.seed, report["pages"], report["words_per_page"], seconds, floors["closed_book"],
        floors["majority_of_type"], floors["single_search"], report["floors"]["named"]["closed_book"],
        found["recall@5"], found["recall@5_of_two_pages"], found["both_gold@5"],
        found["all_gold@3_of_multi_hop_unnamed"], " / ".join(map(str, found["strata"].values())),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
