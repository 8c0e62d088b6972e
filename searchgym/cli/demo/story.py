"""Printed end of a demonstration: one question before and after, the numbers, and what to do next.

Lines have at most 80 characters; only paths may be longer.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from searchgym.cli.demo.summary import COMPARISONS, OTHERS
from searchgym.cli.output import printable, tell
from searchgym.cli.tables import laid_out

WIDTH: Final = 80
"""Characters of a line."""
HALF: Final = 38
"""Characters of a line of one of two columns."""
MAX_TEXT: Final = 160
"""Maximum number of characters of a query, a title or an answer."""
COLUMNS: Final = {
    "questions": "questions",
    "before": "before",
    "after": "after",
    "closed-book": "no search",
    "single-search": "one search",
    "gold pages": "gold pages",
    "evidence-oracle": "oracle",
}
"""Key of a column of the table to its head."""
LEGEND: Final = (
    "hops: number of facts that the question needs. no search: a script that guesses without searching. one search: a "
    "script that searches once, for the question itself, then guesses in the same way or answers with a page's title. "
    "gold pages: the model before training, with the right pages in its context; the rest is a limit of reading. "
    "oracle: a script that searches for the right titles and is given the answer if it gets all of them."
)


def print_summary(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the end of a demonstration on standard output."""
    tell("\n".join(story_lines(summary, out)))


def story_lines(summary: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yields the lines that `print_summary` prints.

    Args:
        summary: Content of ``summary.json``.
        out: Folder of the demonstration.
    """
    yield from _example(summary["example"])
    yield ""
    low, high = summary["gain_ci95"]
    yield from _wrapped(
        f"EM {summary['em_before']:.3f} before, {summary['em_after']:.3f} after on {summary['n']} held-out questions: "
        f"{summary['gain']:+.3f} (95 % interval {low:.3f} to {high:.3f} over these questions; one training run, and "
        "another seed may differ)."
    )
    yield from _wrapped(
        "EM (exact match) is the share of questions that are answered correctly. Searches per question: "
        f"{summary['searches_before']:.2f} before, {summary['searches_after']:.2f} after."
    )
    yield ""
    yield from _table(summary["em"])
    yield ""
    yield from _wrapped(LEGEND)
    yield from _explanations(summary["em"])
    minutes, seconds = divmod(round(summary["seconds_in_all"]), 60)
    yield from ("", f"Time: {minutes} min {seconds} s, {summary['seconds']:.0f} s of them training.")
    yield f"Report: {summary['report']} (open it in a browser)"
    yield f"Training curve: {summary['curve']}"
    yield from ("", "Next:")
    called = Path(sys.argv[0])
    program = str(called) if called.name == "searchgym" else f"{sys.executable} -m searchgym"
    model = f"--model {shlex.quote(summary['checkpoint'])}"
    for purpose, words in (
        ("read an episode of the trained model token by token", (f"show {shlex.quote(str(out / 'after'))}", model)),
        ("test it on twelve questions about other pages", (f"eval Demo --agent {summary['agent']}", model)),
        ("train for longer", (f"train {summary['recipe']} steps=60", "--out runs/longer")),
    ):
        yield f"  # {purpose}"
        yield from _command(program, words)


def _example(example: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields one question with its episodes before and after training, side by side."""
    if example is None:
        yield "Training turned no held-out question from wrong to right."
        return
    yield "ONE QUESTION, BEFORE AND AFTER TRAINING"
    yield from _wrapped(
        f"Of the held-out questions, training turned {example['turned_right']} from wrong to right and "
        f"{example['turned_wrong']} from right to wrong. This is the first, in order of ids, that turned right."
    )
    yield ""
    yield from _wrapped(f"Question: {_text(example['question'])}", "          ")
    yield from _wrapped(f"Gold answer: {' or '.join(map(_text, example['golds']))}", "             ")
    yield ""
    columns = [list(_episode(name, example[name])) for name in ("before", "after")]
    for left, right in zip_longest(*columns, fillvalue=""):
        yield f"{left:<{HALF}}  | {right}".rstrip()
    if any(gold for name in ("before", "after") for search in example[name]["searches"] for _, gold in search["hits"]):
        yield "* page that the answer needs"


def _episode(name: str, episode: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of one of the two columns."""
    yield f"{name.upper()} TRAINING"
    for number, search in enumerate(episode["searches"], start=1):
        yield from _wrapped(f"search {number}: {_text(search['query'])}", "  ", HALF)
        hits = ", ".join(f"{_text(title)}{'*' * gold}" for title, gold in search["hits"])
        yield from _wrapped(f"  pages: {hits or 'none'}", "    ", HALF)
    if not episode["searches"]:
        yield "no search"
    answer = "none" if episode["answer"] is None else _text(episode["answer"]) or "(empty)"
    yield from _wrapped(f"answer: {answer}", "  ", HALF)
    yield f"{'RIGHT' if episode['right'] else 'WRONG'}"


def _table(em: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of EM by number of hops."""
    rows = []
    for group, values in em.items():
        if " " not in group:  # groups within a number of hops are in the notes below the table
            label = group if group == "all" else f"{group} hop{'s' * (group != '1')}"
            cells = [values[key] for key in COLUMNS]
            rows.append([label, *("n/a" if v is None else str(v) if isinstance(v, int) else f"{v:.3f}" for v in cells)])
    yield from laid_out(["EM", *COLUMNS.values()], rows, WIDTH)


def _explanations(em: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields why guessing beats the trained model at some number of hops: many of the questions compare."""
    for group in (name for name in em if f"{name} {COMPARISONS}" in em):
        compared, others, both = em[f"{group} {COMPARISONS}"], em[f"{group} {OTHERS}"], em[group]
        if both["closed-book"] > both["after"]:
            yield ""
            yield from _wrapped(
                f"At {group} hops guessing ({both['closed-book']:.3f}) beats the trained model ({both['after']:.3f}): "
                f"{compared['questions']} of {both['questions']} questions compare two things, and answering yes, or "
                f"the first of two names, is right in {compared['closed-book']:.3f} of them (trained model: "
                f"{compared['after']:.3f}). On the others guessing gets {others['closed-book']:.3f}, the trained model "
                f"{others['after']:.3f}."
            )


def _command(program: str, words: Sequence[str]) -> Iterator[str]:
    """Yields a shell command of quoted parts, continued with backslashes where it is longer than a line."""
    line = f"  {program}"
    for word in words:
        if len(line) + len(word) > WIDTH - 3:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line += f" {word}"
    yield line


def _wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Returns a text as lines; `indent` begins all but the first."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _text(text: str) -> str:
    """Returns a text of an episode on one line, cut to `MAX_TEXT` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]} (cut)"
