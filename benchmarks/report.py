"""Reports of large runs: seconds, peak memory and size of the page, by number of episodes.

Each report is made in a process of its own, of an evaluation with made-up episodes of several thousand characters.

python benchmarks/report.py [--episodes 1000 10000] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from searchgym.cli.output import emit_rows
from searchgym.corpora.files import write_jsonl
from searchgym.eval.report import write_report
from searchgym.eval.report.episodes import Tally
from searchgym.eval.run_folder import RunReader
from searchgym.records import Answer, Call, Episode, Hit, Passage, Searched
from searchgym.rollout.storage import EpisodeWriter

TURNS: Final = 3
HITS: Final = 5


def main() -> None:
    """Makes the runs and their reports, and prints one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--episodes", type=int, nargs="+", default=[1000, 10_000], help="number of episodes of each run"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.of:
        print(json.dumps(measure(args.of)))
        return
    rows = []
    for count in args.episodes:
        print(f"{count} episodes ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            make_run(Path(folder), count)
            command = [sys.executable, __file__, "--of", folder]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows.append({"episodes": count} | json.loads(output))
    emit_rows(rows, args.json, "results", f"reports of runs with {TURNS} turns of {HITS} hits")


def measure(folder: Path) -> dict[str, Any]:
    """Writes the report of a run and returns its seconds, memory and size."""
    data = (folder / "episodes.jsonl").stat().st_size
    started = time.perf_counter()
    page = write_report([folder], folder / "report.html")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "MB of episodes": round(data / 1e6, 1),
        "seconds": round(seconds, 1),
        "peak MiB": round(peak),
        "page kB": round(page.stat().st_size / 1e3),
    }


def make_run(folder: Path, count: int) -> None:
    """Writes a finished evaluation of made-up episodes."""
    with EpisodeWriter(folder / "episodes.jsonl") as writer:
        for number in range(count):
            writer.write(made_up(number))
    tally = Tally()
    for episode in RunReader(folder).episodes(tokens=False):
        tally.add(episode)
    record = {"env": "made-up", "agent": "made-up", "questions": count, "samples": 1, "questions_sha256": "0" * 64}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "scores.json").write_text(json.dumps(tally.scores()))
    rows = (
        {"id": f"q{n}", "question": f"question {n}", "golds": ["yes"], "hops": str(n % 4 + 1), "em": float(n % 3 == 0)}
        for n in range(count)
    )
    write_jsonl(folder / "questions.jsonl", rows)


def made_up(number: int) -> Episode:
    """Returns an episode of a few thousand characters."""
    right = float(number % 3 == 0)
    hits = tuple(Hit(Passage(f"p{k}", f"Page {k}", "some words " * 40), 1.0 + k) for k in range(HITS))
    searches = [Searched(turn, f"query {turn}", hits) for turn in range(1, TURNS + 1)]
    text = "a thought " * 20
    calls = [Call(0, 100 * n, 100 * n + 40, "searcher", "model", n, text=text) for n in range(1, TURNS + 2)]
    return Episode(
        id=f"q{number}#0",
        question_id=f"q{number}",
        agent="made-up",
        env="made-up",
        calls=calls,
        searches=searches,
        turns=TURNS + 1,
        answer=Answer("yes" if right else "no"),
        stop_reason="answer",
        reward=right,
        scores={"em": right, "f1": right},
    )


if __name__ == "__main__":
    main()
