"""The report of runs: one page that people read, made of run folders alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from searchgym.corpora.files import write_atomic
from searchgym.eval.report.blocks import Block, Code, Heading, Items, Reading, ReportPage, TextBlock, items_of
from searchgym.eval.report.evaluations import evaluation_blocks
from searchgym.eval.report.html import to_html
from searchgym.eval.report.runs import RunData, find_runs, names_of, read
from searchgym.eval.report.trainings import training_blocks
from searchgym.named import code_refused
from searchgym.version import __version__

SAMPLE: Final = 20
"""Number of episodes of each run that a report has to read."""
MEANING: Final = items_of(
    """
EM and F1 | are those of the environment's official scorer, means over questions. The intervals are 95 % \
bootstrap intervals over questions; those of an unfinished run or of bare episodes are over the \
questions that were played.
EM less the first | is the mean of paired differences to the first run of the table, question by question, with a \
paired bootstrap interval (95 %); “not distinguishable” where it holds 0.
Tokens read | are the contexts before every output, added up, as a server bills them.
Gold pages found | is the share of episodes whose hits held all gold pages; “legal” is the share of outputs that were \
understood.
An empty cell | was not measured, or is not a number in the run's files.
Episodes to read | are drawn by the SHA-256 of their ids, half of them right where there are enough; of a training, \
from its last step that wrote any. Long texts are cut. `searchgym show RUN` prints an episode token by token.
"""
)
"""How a reader should take the tables."""


def report_page(
    paths: Sequence[Path], sample: int = SAMPLE, progress: Callable[[str, int, int], None] | None = None
) -> ReportPage:
    """Returns the report of runs.

    Args:
        paths: Run folders, episode files, or folders of runs.
        sample: Number of episodes of each run to read.
        progress: Called with ("runs", number done, number in all).

    Raises:
        DataMissingError: A path holds no run.
        DataError: A file of a run is damaged; the message names file and line.
        UsageError: Two runs on the same questions have scores of different ones, or matplotlib is not installed.
    """
    folders = find_runs(paths)
    runs: list[RunData] = []
    for number, (folder, name) in enumerate(zip(folders, names_of(folders), strict=True), start=1):
        with code_refused():
            runs.append(read(folder, name, sample))
        if progress is not None:
            progress("runs", number, len(folders))
    told = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    blocks: list[Block] = [TextBlock([f"{told}, by ", Code("searchgym report"), f" of version {__version__}."])]
    if notes := [(f"{run.name}:", [note]) for run in runs for note in run.notes]:
        blocks.append(Items(notes))
    blocks += evaluation_blocks([run for run in runs if not run.is_training])
    blocks += training_blocks([run for run in runs if run.is_training])
    if any(run.sample for run in runs):
        blocks.append(Heading("Episodes to read"))
    for run in runs:
        if run.sample:
            drawn = TextBlock([f"{len(run.sample)} of {run.episodes:,} episodes."])
            blocks += [Heading(run.name, 3), drawn, Reading(run.sample)]
    title = f"Report of {runs[0].name}" if len(runs) == 1 else f"Report of {told}"
    return ReportPage(title, [*blocks, Heading("How to read it"), MEANING])


def write_report(
    paths: Sequence[Path],
    out: Path,
    sample: int = SAMPLE,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Writes the report of runs to an HTML file, which appears when it is complete; see `report_page`."""
    page = to_html(report_page(paths, sample, progress))
    with write_atomic(out) as file:
        file.write(page.encode())
    return out
