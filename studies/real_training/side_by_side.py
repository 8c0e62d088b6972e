"""Episodes of two runs at the same questions, side by side: what was searched for and answered, as a Markdown table.

    python studies/real_training/side_by_side.py BEFORE AFTER --questions test.jsonl [--n 20] [--json]

BEFORE and AFTER are ``episodes.jsonl`` of ``searchgym eval`` or ``train``. The questions are the first ones of the file
that both runs have; none is chosen by what came of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit
from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.questions import read_questions


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    runs = [{row["question_id"]: row for _, row in iter_jsonl(path)} for path in (args.before, args.after)]
    rows: list[dict[str, Any]] = []
    for question in read_questions(args.questions):
        if all(question.id in run for run in runs) and len(rows) < args.n:
            told = [told_of(run[question.id]) for run in runs]
            answers = ", ".join(question.answers)
            rows.append({"question": question.text, "answers": answers, "before": told[0], "after": told[1]})
    if args.json:
        emit({"results": rows}, True)
        return
    print("| question | answers | before | after |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(str(value).replace('|', '/') for value in row.values())} |")


def told_of(episode: Mapping[str, Any]) -> str:
    """Returns the queries of an episode, its answer, and whether that is right."""
    queries = "; ".join(search["query"] for search in episode["searches"])
    answer = "no answer" if episode["answer"] is None else episode["answer"]["text"]
    return f"{queries} → {answer} ({'right' if episode['scores']['em'] else 'wrong'})"


if __name__ == "__main__":
    main()
