"""The ``report`` command: runs as one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from searchgym.cli.output import Json, emit, say, stages
from searchgym.errors import UsageError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders of eval or train, episodes.jsonl files, or folders that hold runs."),
    ],
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first of the runs.")] = None,
    episodes: Annotated[int, typer.Option(min=0, max=1000, help="Episodes of each run to read.")] = 20,
    json: Json = False,
) -> None:
    """Write runs as one HTML page.

    It has tables with intervals, figures and episodes to read, and needs neither scripts nor a network.
    """
    page = out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html"
    if page.suffix != ".html":
        raise UsageError(f"--out {page}: a report is an .html file")
    from searchgym.eval.report.write import write_report

    with stages() as progress:
        write_report(runs, page, episodes, progress)
    if json:
        emit({"report": str(page), "bytes": page.stat().st_size}, True)
    else:
        say(f"report: {page} ({page.stat().st_size / 1e6:.1f} MB); open it in any browser")
