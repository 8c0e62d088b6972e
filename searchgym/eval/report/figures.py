"""Figures of a report as SVG, each drawn for a light and for a dark background."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from searchgym.errors import UsageError, drawable
from searchgym.eval.report.blocks import Picture
from searchgym.eval.report.html import NEEDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = {"light": "#1b1f24", "dark": "#e6e9ed"}
"""Colour of text and lines by background."""
COLOURS: Final = {
    "light": ("#2f6fb3", "#c8553d", "#2e8b57", "#8a5fb5", "#a87400", "#008b98", "#b5468a", "#5f6b78"),
    "dark": ("#6fb1f2", "#ff9078", "#62c58d", "#c3a1ea", "#e3b341", "#4fc7d4", "#f08bc4", "#a9b4c0"),
}
"""Colours of runs in order, by background; they repeat."""
MARKERS: Final = "osD^vPX*"
"""Markers of runs in order; with the colours they repeat at another pace, so that 64 runs differ."""
LONGEST_NAME: Final = 36
"""Maximum number of characters of a run's name in a legend."""
COMMENT: Final = re.compile(rb"<!--.*?-->", re.DOTALL)
"""Pattern of comments of an SVG, in which matplotlib repeats the texts that it draws."""
LONGEST_LINE: Final = 70
"""Maximum number of characters of a line of other text in a figure."""
MAX_RUNS: Final = 12
"""Maximum number of runs in one figure: the first ones."""

Points = Sequence[tuple[float, float, float, float]]
"""Points of a line: x, y, and the lower and upper end of its band."""


@dataclass(frozen=True, slots=True)
class Series:
    """One run, or one group of runs, in a figure."""

    name: str
    panels: Mapping[str, Points]
    """Title of a panel to the points in it."""


def panels(
    series: Sequence[Series],
    label: str,
    title: str,
    caption: str,
    *,
    integer: bool = False,
    numbered: bool = True,
    doubling: bool = False,
) -> Picture | None:
    """Draws lines with bands, one panel for each title; None if there is nothing to draw.

    Args:
        series: Lines, the same in every panel.
        label: Label of the shared x axis.
        title: What the figure shows, for readers without images.
        caption: Text below the figure.
        integer: Whether the x axis counts.
        numbered: Whether the legend numbers the lines, as tables number runs.
        doubling: Whether the x axis is logarithmic, with a tick for each doubling.
    """
    names = list(dict.fromkeys(name for one in series for name, points in one.panels.items() if points))

    def draw(figure: Figure, colours: Sequence[str]) -> None:
        from matplotlib.ticker import MaxNLocator

        for name, axes in zip(names, _grid(figure, len(names)), strict=True):
            for index, one in enumerate(series):
                if points := one.panels.get(name):
                    xs, ys, lows, highs = zip(*points, strict=True)
                    style = _style(index, colours)
                    axes.plot(xs, ys, markersize=4, **style)
                    axes.fill_between(xs, lows, highs, alpha=0.2, linewidth=0, color=style["color"])
            axes.set_title(_drawable(name), loc="left", fontsize="medium")
            axes.set_xlabel(label)
            if doubling:
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1024 else f"{value / 1024:g}k")
            if integer:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _picture(draw, series, len(names), title, caption, numbered) if names else None


def scatter(series: Sequence[Series], title: str, caption: str, labels: Mapping[str, str]) -> Picture | None:
    """Draws a point with a vertical interval for each run, one panel for each cost; None if there is nothing to draw.

    Args:
        series: Runs; a panel's points are (cost, score, low, high).
        title: What the figure shows, for readers without images.
        caption: Text below the figure.
        labels: Panel to the label of its x axis.
    """
    names = [name for name in labels if any(one.panels.get(name) for one in series)]

    def draw(figure: Figure, colours: Sequence[str]) -> None:
        for name, axes in zip(names, _grid(figure, len(names)), strict=True):
            for index, one in enumerate(series):
                for x, y, low, high in one.panels.get(name, ()):
                    ends = [[max(y - low, 0.0)], [max(high - y, 0.0)]]
                    axes.errorbar([x], [y], yerr=ends, capsize=3, linewidth=1, markersize=7, **_style(index, colours))
            axes.set_ylabel("EM")
            axes.set_xlabel(labels[name])
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.05)

    return _picture(draw, series, len(names), title, caption) if names else None


def bars(series: Sequence[Series], title: str, caption: str) -> Picture | None:
    """Draws a group of bars with intervals for each panel, a bar for each run; None if there is nothing to draw.

    Args:
        series: Runs; a panel has one point, of which x is not used.
        title: What the figure shows, for readers without images.
        caption: Text below the figure.
    """
    names = list(dict.fromkeys(name for one in series for name in one.panels))

    def draw(figure: Figure, colours: Sequence[str]) -> None:
        (axes,) = _grid(figure, 1)
        width = 0.8 / len(series)
        for index, one in enumerate(series):
            for group, name in enumerate(names):
                for _, y, low, high in one.panels.get(name, ()):
                    at = group + (index - (len(series) - 1) / 2) * width
                    ends = [[max(y - low, 0.0)], [max(high - y, 0.0)]]
                    axes.bar([at], [y], width * 0.92, color=colours[index % len(colours)])
                    axes.errorbar([at], [y], yerr=ends, color=axes.xaxis.label.get_color(), capsize=2, linewidth=1)
        axes.set_xticks(range(len(names)), [_drawable(name) for name in names])
        axes.set_ylabel("EM")
        axes.set_ylim(0, 1.05)

    return _picture(draw, series, 1, title, caption) if names else None


def _grid(figure: Figure, count: int) -> list[Axes]:
    """Returns the axes of panels, two in a row."""
    columns = min(count, 2)
    rows = math.ceil(count / columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def _picture(
    draw: Callable[[Figure, Sequence[str]], None],
    series: Sequence[Series],
    count: int,
    title: str,
    caption: str,
    numbered: bool = True,
) -> Picture:
    """Draws a figure in both colourings, with a legend of the runs.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError:
        raise UsageError(f"figures need matplotlib: {NEEDS}") from None
    images: dict[str, bytes] = {}
    for ground, ink in INK.items():
        style: dict[str, Any] = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), ink)
        style |= {"xtick.color": ink, "ytick.color": ink}
        style |= {"axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none"}
        style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
        # Names are text, never formulas; glyphs are drawn as outlines, so that no font is asked for.
        style |= {"text.parse_math": False, "svg.fonttype": "path", "svg.hashsalt": "searchgym", "font.size": 10}
        colours, file = COLOURS[ground], io.BytesIO()
        with rc_context(cast(Any, style)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            height = 2.9 * math.ceil(count / 2) + 0.22 * len(series)
            figure = Figure(figsize=(5.0 * min(count, 2) + (1.6 if count == 1 else 0.0), height), layout="constrained")
            FigureCanvasSVG(figure)
            draw(figure, colours)
            keys = []
            for n, one in enumerate(series):  # the number that the run has in the tables, and its name on one line
                name, half = " ".join(one.name.split()), LONGEST_NAME // 2
                name = name if len(name) <= LONGEST_NAME else f"{name[:half]} … {name[-half:]}"
                keys.append(Line2D([], [], **_style(n, colours), label=f"{n + 1}  " * numbered + _drawable(name)))
            figure.legend(handles=keys, loc="outside lower left", frameon=False, fontsize="small")
            figure.savefig(file, format="svg", metadata={"Date": None})
        images[ground] = COMMENT.sub(b"", file.getvalue())
    return Picture(images["light"], images["dark"], title, caption)


def _style(index: int, colours: Sequence[str]) -> dict[str, Any]:
    """Returns the colour and marker of a run."""
    return {"color": colours[index % len(colours)], "marker": MARKERS[index % len(MARKERS)]}


def _drawable(text: str) -> str:
    """Returns at most two lines of `LONGEST_LINE` characters; control and undrawable characters are replaced."""
    lines = [line[:LONGEST_LINE] for line in text.split("\n")[:2]]
    return "\n".join(map(drawable, lines))
