"""Reports on a set of generated questions: rejections by filter, and measured shortcuts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from searchgym.questions.filters import RANKS
from searchgym.questions.generate import QuestionSet, Stratum
from searchgym.questions.saved import table
from searchgym.questions.shortcuts import Shortcuts


def report_of(questions: QuestionSet, shortcuts: Shortcuts) -> dict[str, Any]:
    """Returns counts and measurements of a question set as plain data; shares are in [0, 1]."""
    rejected: Counter[str] = Counter()
    for stratum in questions.strata:
        rejected.update(stratum.rejected)
    return {
        "pages": dict(questions.pages),
        "held_out_pages": questions.held_out,
        "links": len(questions.facts.links),
        "facts": len(questions.triples),
        "linked_facts": sum(fact.target is not None for fact in questions.facts.facts),
        "cut_links": questions.cut,
        "crossing": questions.crossing,
        "questions": {split: len(questions.split(split)) for split in questions.pages},
        "multi_hop": sum(len(s.questions) for s in questions.strata if s.hops > 1),
        "strata": _strata(questions.strata),
        "drafts_refused": dict(rejected.most_common()),
        "mentions_refused": dict(questions.facts.refused_links),
        "facts_refused": dict(questions.facts.refused),
        "shortcuts": shortcuts.rows(),
    }


def _strata(strata: Sequence[Stratum]) -> list[dict[str, Any]]:
    """Returns a row for each shape, over all splits."""
    groups: defaultdict[tuple[str, int], list[Stratum]] = defaultdict(list)
    for stratum in strata:
        groups[stratum.shape, stratum.hops].append(stratum)
    rows = []
    for (shape, hops), group in groups.items():
        searched = sum(stratum.searched for stratum in group)
        shares = {
            f"{name}@{k}": round(sum(getattr(s, name).get(str(k), 0) for s in group) / searched, 4)
            if searched
            else None
            for name in ("raw", "asked")
            for k in RANKS
        }
        counts = {"wanted": sum(s.wanted for s in group), "drawn": sum(s.drawn for s in group)}
        count = sum(len(stratum.questions) for stratum in group)
        rows.append({"shape": shape, "hops": hops} | counts | {"searched": searched, "kept": count} | shares)
    return rows


def markdown(report: Mapping[str, Any], source: str, pictured: bool) -> str:
    """Returns the report of a question set as Markdown, with a line for its picture if there is one."""
    image = "![Questions by shape, and how many one search gives away](report.png)\n"
    total = sum(report["questions"].values())
    splits = ", ".join(f"{count} {name}" for name, count in report["questions"].items())
    refused = [{"rule": rule, "drafts": count} for rule, count in report["drafts_refused"].items()]
    return "\n".join(
        [
            f"# {total} questions from {source}\n",
            f"{splits}; {report['multi_hop']} need two pages or more. The corpus has {report['links']} links and "
            f"{report['facts']} facts, {report['linked_facts']} of them about two pages; "
            f"{report['held_out_pages']} pages were left out.\n",
            *([f"{crossed(report)}.\n"] if report["cut_links"] else []),
            *([image] if pictured else []),
            "## By shape\n",
            "`raw@k`: drafts of which one search for the question finds all gold pages within k. `asked@k`: drafts of "
            "which searches for the names of the pages do. Both before the filters that search.\n",
            table(report["strata"]),
            "## What the filters took\n",
            table(refused),
            "## Ways round searching\n",
            "Shares of the questions that were kept. `one_search`: all gold pages within the environment's hits of one "
            "search. `closed_book` and `majority`: exact match of guesses from the wording, and of the most frequent "
            "answer of each last relation. `co_covered`: one page states all that the question needs. `single_clue`: "
            "one of several clues is enough. `exposed`: the question names what should be found on the way.\n",
            table(report["shortcuts"]),
        ]
    )


def crossed(report: Mapping[str, Any]) -> str:
    """Returns a sentence on the links that were cut so that each split gets its share of well-linked pages."""
    return (
        f"The pages are so well linked that {report['cut_links']} pairs of linked pages are in two splits: "
        f"{report['crossing']} questions that cross are left out"
    )


def picture(report: Mapping[str, Any], path: str) -> None:
    """Plots the questions by shape, with the share of drafts that one search solves, as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report["strata"] if row["drawn"]]
    names = [f"{row['shape']}, {row['hops']} hop{'s' * (row['hops'] > 1)}" for row in rows]
    figure = Figure(figsize=(9, 0.5 * len(rows) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, [row["kept"] for row in rows], color="#4477aa")
    left.set_title("questions kept")
    left.bar_label(left.containers[0], padding=2)
    right.barh(names, [row["raw@3"] or 0 for row in rows], color="#cc6677")
    right.set_title("drafts whose own text finds all pages in 3")
    right.set_xlim(0, 1)
    left.invert_yaxis()
    figure.savefig(path, dpi=100)
