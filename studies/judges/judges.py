"""Judges in figures: how far their verdicts on short reports agree with what the reports state, counted exactly.

    python studies/judges/judges.py [--judge rules] [--tasks 200] [--level simple] [--json]

A script writes a report for each task of ``searchgym/Report-v0`` and notes what it does with each fact: it states it,
in the wording that rules know or in another, or with a pronoun for the subject; states something else; denies it;
leaves it open; leaves it out. The first three state the fact. ``believed`` is the share of facts of a kind that the
judge takes as stated. A judge is ``rules``, a model (``smollm2``), ``URL#NAME`` behind a server, or
``module:Class``. Reports for which it gives no verdict are counted and left out.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from searchgym.cli.output import emit, emit_rows
from searchgym.errors import NoVerdictError
from searchgym.options import loaded, read
from searchgym.questions.worlds.open_tasks import open_tasks
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question
from searchgym.scoring.judges.judge import Checked, Judge
from searchgym.scoring.judges.rubric import rubric_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from known_reports import ReportWriter, WrittenReport, agreement


def judged(
    judge: Checked, tasks: list[Question], reports: list[WrittenReport]
) -> tuple[list[Question], list[WrittenReport]]:
    """Returns the tasks and reports on which the judge gives a verdict."""
    kept = []
    for task, report in zip(tasks, reports, strict=True):
        try:
            judge.passes(task.text, report.text, rubric_of(task))
        except NoVerdictError:
            continue
        kept.append((task, report))
    return [task for task, _ in kept], [report for _, report in kept]


def main() -> None:
    """Writes the reports, asks the judge, and prints how far it agrees with the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", default="rules", help="rules, a model, URL#NAME or module:Class")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--level", choices=["simple", "full"], default="simple", help="of the world's language")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    world = WorldSpec(args.level, max(60, 4 * args.tasks), args.seed, "validation")
    tasks = list(open_tasks(world, "report", n=args.tasks, seed=args.seed))
    writer = ReportWriter(world, random.Random(args.seed))
    reports = [writer.write(task) for task in tasks]
    judge = loaded(read(Judge, args.judge, "--judge")).open({})
    started = time.perf_counter()
    try:
        kept = judged(judge, tasks, reports)
        found = agreement(judge, *kept) if kept[0] else None
    finally:
        judge.close()
    row: dict[str, float] = {
        "reports": len(tasks),
        "without_verdict": judge.counts.failed,
        "swayed": judge.counts.swayed,
        "reports_per_s": round(len(tasks) / (time.perf_counter() - started), 1),
    }
    if found is None:
        emit(row, args.json, f"judge {args.judge}")
        return
    row |= {"verdicts": found.verdicts, "accuracy": found.accuracy, "kappa": found.kappa}
    row["score_error"] = found.score_error
    believed = [{"what": kind, "facts": n, "believed": share} for kind, (n, share) in found.by_kind.items()]
    if args.json:
        emit({"judge": args.judge, **row, "kinds": believed}, True, "judge")
        return
    emit(row, False, f"judge {args.judge}")
    emit_rows(believed, False, "what the report does with a fact")


if __name__ == "__main__":
    main()
