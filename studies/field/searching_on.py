"""What an agent does once it has found every page that a question needs: whether it answers, rightly, or searches on.

    python studies/field/searching_on.py EVALUATION [EVALUATION ...] [--json]

For run folders of ``searchgym eval`` on the questions that an environment has by itself, with gold pages: the share of
questions of which all pages were found, of these the share that was answered rightly, and of these the share after
whose last page the agent went on to search; by the number of pages and for all questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit_rows
from searchgym.errors import DataError
from searchgym.eval.viewing.saved import open_run, questions_of_run
from searchgym.records import Episode, Question, title_key
from searchgym.rollout import read_episodes
from searchgym.train.credit.evidence import new_pages


@dataclass(frozen=True)
class Found:
    """What became of one question."""

    pages: int
    """Number of gold pages."""
    right: bool
    whole: bool
    """Whether all gold pages were found."""
    went_on: bool
    """Whether it searched after that."""


def main() -> None:
    """Prints a row for each evaluation and number of pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", nargs="+", type=Path, metavar="EVALUATION")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [row for folder in args.evaluations for row in rows_of(folder)]
    emit_rows(rows, args.json, "results", "after the last page was found")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for each number of gold pages, and one for all questions.

    Raises:
        DataError: A question names no gold page.
        UsageError: The environment's questions are not those that were asked.
    """
    questions = {question.id: question for question in questions_of_run(open_run(folder))}
    found = [found_in(episode, questions[episode.question_id]) for episode in read_episodes(folder / "episodes.jsonl")]
    groups = {
        str(pages): [own for own in found if own.pages == pages] for pages in sorted({own.pages for own in found})
    }
    return [
        {"evaluation": str(folder), "pages": name} | summary(own) for name, own in (groups | {"all": found}).items()
    ]


def found_in(episode: Episode, question: Question) -> Found:
    """Returns what became of a question in an episode.

    Raises:
        DataError: The question names no gold page.
    """
    gold = {title_key(title) for title in question.gold_titles or ()}
    if not gold:
        raise DataError(f"question {question.id!r} names no gold page: give an evaluation on questions that do")
    fresh = new_pages(episode, question)
    whole = sum(fresh.values()) == len(gold)
    last = max((turn for turn, pages in fresh.items() if pages), default=-1)
    return Found(len(gold), episode.scores["em"] == 1, whole, whole and any(turn > last for turn in fresh))


def summary(found: Sequence[Found]) -> dict[str, Any]:
    """Returns shares: of all questions, and of those of which all pages were found."""
    whole = [own for own in found if own.whole]
    shares = {"right of whole": [own.right for own in whole], "searched on": [own.went_on for own in whole]}
    row: dict[str, Any] = {"questions": len(found), "em": sum(own.right for own in found) / len(found)}
    row["whole"] = len(whole) / len(found)
    return row | {name: sum(own) / len(own) if own else None for name, own in shares.items()}


if __name__ == "__main__":
    main()
