"""The report of runs: one page to read, made only from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from searchgym.corpora.files import write_atomic
from searchgym.eval.report.blocks import Block, Code, Heading, Items, Reading, ReportPage, TextBlock, items_of, outcomes
from searchgym.eval.report.evaluations import evaluation_blocks, evaluation_outcome, groups_by_questions
from searchgym.eval.report.html import to_html
from searchgym.eval.report.runs import RunData, find_runs, names_of, read
from searchgym.eval.report.trainings import groups_of, training_blocks, training_outcome
from searchgym.named import code_refused
from searchgym.version import __version__

SAMPLE: Final = 20
"""Number of episodes of each run that a report has to read."""
MEANING: Final = items_of(
    """
EM and F1 | are computed by the environment's official scorer and averaged over questions, with 95 % bootstrap \
intervals over questions. An unfinished run has the scores of the questions that it has answered so far.
EM minus first run | is the mean difference to the first run of the table, paired by question, with a 95 % bootstrap \
interval; “not distinguishable” means that the interval contains 0.
EM minus first run by cause | tells how much of it comes from answering at all, from which gold pages were among the \
hits, from right answers with gold pages and without any (memory), and from the exact wording. The causes change one \
at a time, in this order; “least” and “most” are a term's ends over all orders where they differ by more than 0.01.
Tokens read | are the lengths of all prompts added up, as a server bills them.
Gold pages found | is the share of episodes whose searches returned all gold pages. “Legal” is the share of \
well-formed outputs.
An empty cell | was not measured, or the run's files hold no finite number for it.
Dates | are those of the last change to the runs' files (UTC).
Episodes to read | are chosen by the SHA-256 of their ids, half of them right if there are enough; those of a training \
come from its last step. Long texts are cut. `searchgym show RUN` prints an episode token by token.
"""
)
"""Notes on how to read the tables."""


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
    groups = groups_by_questions([run for run in runs if not run.is_training])
    trainings = [run for run in runs if run.is_training]
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    blocks: list[Block] = outcomes([*map(evaluation_outcome, groups), *map(training_outcome, groups_of(trainings))])
    blocks.append(TextBlock([f"{count}; page made by ", Code("searchgym report"), f", version {__version__}."]))
    if notes := [(f"{run.name}:", [note]) for run in runs for note in run.notes]:
        blocks.append(Items(notes))
    blocks += evaluation_blocks(groups)
    blocks += training_blocks(trainings)
    if any(run.sample for run in runs):
        blocks.append(Heading("Episodes to read"))
    for run in runs:
        if run.sample:
            size = TextBlock([f"{len(run.sample)} of {run.episodes:,} episodes."])
            blocks += [Heading(run.name, 3), size, Reading(run.sample)]
    title = f"Report of {runs[0].name}" if len(runs) == 1 else f"Report of {count}"
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
