"""Picture of a demonstration for the front page: EM on held-out questions before and after, and by hops.

    searchgym demo
    python benchmarks/demo_picture.py runs/demo [--out docs/pictures/demo.png] [--json]

The picture is 1,600 pixels wide, to be shown at 800, on a light card that suits light and dark pages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from searchgym.cli.output import emit_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT: Final = Path(__file__).parents[1]
CARD, INK, SOFT, GRID = "#f7f8fa", "#1b1f24", "#59636e", "#d8dee4"
BEFORE, AFTER, GUESS = "#9aa5b1", "#2f6fb3", "#c8553d"
LABEL: Final = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}
"""Box behind the number above a bar, which hides the dashed line."""
NUMBERS: Final = (
    "Zero",
    "One",
    "Two",
    "Three",
    "Four",
    "Five",
    "Six",
    "Seven",
    "Eight",
    "Nine",
    "Ten",
    "Eleven",
    "Twelve",
)


def main() -> None:
    """Draws the picture, and prints its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of a demonstration")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "demo.png", help="the picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    draw(args.folder, args.out)
    emit_rows([{"file": str(args.out), "kB": round(args.out.stat().st_size / 1e3)}], args.json, "results", "pictures")


def title_of(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the title and the subtitle: what was learnt, and the numbers."""
    steps = summary["steps"]
    count = NUMBERS[steps] if steps < len(NUMBERS) else str(steps)
    return (
        f"{count} steps of GRPO teach a tiny model to search",
        f"Exact match {summary['em_before']:.2f} → {summary['em_after']:.2f} on {summary['n']} held-out questions",
    )


def draw(folder: Path, out: Path) -> None:
    """Draws the picture of a demonstration."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    style: dict[str, Any] = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    style |= {"axes.edgecolor": SOFT, "axes.spines.top": False, "axes.spines.right": False, "font.size": 12}
    style |= {"axes.facecolor": CARD, "figure.facecolor": CARD, "savefig.facecolor": CARD}
    with rc_context(cast(Any, style)):
        figure = Figure(figsize=(8, 4.1), dpi=200)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.08, 0.20, 0.90, 0.55))
        title, subtitle = title_of(summary)
        figure.text(0.03, 0.93, title, fontsize=17, fontweight="bold", va="center")
        figure.text(0.03, 0.845, subtitle, fontsize=13, color=SOFT, va="center")
        draw_groups(axes, summary["em"])
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, metadata={"Software": None})


def draw_groups(axes: Axes, em: Mapping[str, Mapping[str, float]]) -> None:
    """Draws EM before and after by the number of facts that a question needs, and what guessing scores."""
    groups = ["all", *(name for name in em if name.isdecimal())]
    labels = ["all questions", *(f"{name} fact{'s' * (name != '1')}" for name in groups[1:])]
    for shift, name, colour in ((-0.2, "before", BEFORE), (0.2, "after", AFTER)):
        values = [em[group][name] for group in groups]
        bars = axes.bar([n + shift for n in range(len(groups))], values, 0.38, color=colour, label=f"{name} training")
        axes.bar_label(
            bars, [f"{value:.2f}" for value in values], fontsize=12, fontweight="bold", padding=3, bbox=LABEL
        )
    guesses = [em[group]["closed-book"] for group in groups]
    axes.hlines(
        guesses,
        [n - 0.4 for n in range(len(groups))],
        [n + 0.4 for n in range(len(groups))],
        color=GUESS,
        linestyle=(0, (2, 1.5)),
        label="guessing without a search",
    )
    axes.set_xticks(
        range(len(groups)), [f"{label}\n({em[g]['questions']})" for label, g in zip(labels, groups, strict=True)]
    )
    axes.set_ylim(0, 1.0)
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.set_ylabel("exact match")
    axes.set_xlabel("facts that the answer needs (number of questions)")
    axes.legend(frameon=False, loc="upper right", fontsize=11)


if __name__ == "__main__":
    main()
