"""Report on an audit: Markdown with tables, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.eval.audit.audit import Audit
from searchgym.eval.audit.holes import MEANINGS
from searchgym.eval.scores import wilson_ci
from searchgym.questions.saved import table

CUTOFFS: Final = (1, 3, 5, 10, 20, 50, 100)
"""Numbers of hits at which searches are reported."""


def kind_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns a row for each state of a gold page that occurs: number of pages, share, and meaning."""
    total = sum(audit.kinds.values())
    return [
        {
            "gold page": kind,
            "pages": audit.kinds[kind],
            "share": round(audit.kinds[kind] / total, 4),
            "meaning": meaning,
        }
        for kind, meaning in MEANINGS.items()
        if audit.kinds.get(kind)
    ]


def reach_rows(audit: Audit, most: int) -> list[dict[str, Any]]:
    """Returns a row for each kind of query: shares of questions all of whose gold pages are within k hits."""
    rows = audit.shares([k for k in CUTOFFS if k <= most])
    return [{name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()} for row in rows]


def example_rows(audit: Audit) -> list[dict[str, Any]]:
    """Returns a row for each example of a hole."""
    return [{"gold page": kind} | row for kind in MEANINGS for row in audit.examples.get(kind, ()) if kind != "present"]


def share_line(audit: Audit, sampled: bool = False) -> str:
    """Returns a sentence on how many questions the corpus can answer.

    Args:
        audit: Counts.
        sampled: Whether the questions are a sample, so that the share has a 95 % interval (Wilson's).
    """
    if not audit.with_golds:
        return f"None of the {audit.questions} questions names a gold page: nothing can be compared."
    share = f"{audit.answerable / audit.with_golds:.3f}"
    if sampled:
        low, high = wilson_ci(audit.answerable, audit.with_golds)
        share += f" [{low:.3f}, {high:.3f}]"
    unknown = audit.questions - audit.with_golds
    text = f"{audit.answerable} of {audit.with_golds} questions can be answered from this corpus: {share}."
    return text + (f" {unknown} more name no gold page." if unknown else "")


def markdown(audit: Audit, questions: str, corpus: str, most: int, sampled: bool) -> str:
    """Returns the report as Markdown; its picture is ``report.png``."""
    parts = [
        f"# Can {questions} be answered from {corpus}?\n",
        share_line(audit, sampled) + "\n",
        "![Gold pages by state, and what searches reach](report.png)\n",
        "## Gold pages\n",
        table(kind_rows(audit)),
        f"{audit.copies} gold pages are there several times. {audit.conflicts} are there together with a "
        f"near-duplicate under the same title. The answers of {audit.lost_answers} questions are in a gold page, and "
        "not in the corpus.\n",
        "## What searches reach\n",
        f"Shares of questions all of whose gold pages are within k hits, at most {most}.\n",
        table(reach_rows(audit, most)),
        "## Examples of holes\n",
        table(example_rows(audit)),
        f"## Faults of the questions: {audit.faulty}\n",
        table(audit.examples.get("faults", [])),
    ]
    return "\n".join(parts)


def picture(audit: Audit, path: Path, most: int) -> None:
    """Plots gold pages by state, and what searches reach, as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = kind_rows(audit)
    rows: Sequence[Mapping[str, Any]] = reach_rows(audit, most)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.barh(
        [row["gold page"] for row in kinds],
        [row["share"] for row in kinds],
        color=["#4477aa" if row["gold page"] == "present" else "#cc6677" for row in kinds],
    )
    left.bar_label(left.containers[0], labels=[str(row["pages"]) for row in kinds], padding=2)
    left.invert_yaxis()
    left.set_xlim(0, 1.12)
    left.set_title("Gold pages that the corpus has (blue) and holes (red)", fontsize=10)
    left.set_xlabel("share of gold pages")
    for row, marker in zip(rows, "osD", strict=False):
        points = [(int(name[1:]), share) for name, share in row.items() if name.startswith("@")]
        right.plot(*zip(*points, strict=True), marker=marker, label=f"queries: {row['query']}")
    right.set_xticks([k for k in CUTOFFS if k <= most])
    right.set_ylim(0, 1.02)
    right.set_xlabel("hits per query")
    right.set_title("Questions all of whose gold pages are within k hits", fontsize=10)
    if rows:
        right.legend(fontsize=8)
    figure.savefig(path, dpi=100)
