"""Run folders as a report reads them: evaluations, trainings and bare episode files, finished or not, old or new."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.errors import DataMissingError
from searchgym.eval.report.blocks import ShownEpisode
from searchgym.eval.report.episodes import EpisodeSample, QuestionTexts, Tally, shown_episode
from searchgym.eval.report.questions import of_training, recorded
from searchgym.eval.run_folder import MARKS, FinishedRun, QuestionRows, is_run, open_folder, read_finished, read_suite


@dataclass(frozen=True)
class RunData(FinishedRun):
    """What a report shows of one run.

    The record of bare episodes is their environment and agent; a training has none. The scores of an unfinished run or
    of bare episodes are means of the episodes' own, without rows of questions.
    """

    recipe: Mapping[str, Any]
    """Recipe of a training as plain data; empty if this is none."""
    metrics: Sequence[Mapping[str, Any]]
    """Metrics of a training by step."""
    episodes: int
    """Number of episodes in the folder."""
    sample: Sequence[ShownEpisode]
    notes: Sequence[str]
    """What a reader should know: unfinished, half written."""

    @property
    def is_training(self) -> bool:
        """Whether this is a training."""
        return bool(self.recipe)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the run folders and episode files behind paths: a folder of runs stands for all runs directly in it.

    The parts of a suite are in its order, other runs by name; names that begin with "before" come first, since runs
    are compared with the first of them.

    Raises:
        DataMissingError: A path does not exist, or no run is in it.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise DataMissingError("no such run", path)
        runs = [path]
        if not (path.is_file() or is_run(path)):
            suite = read_suite(path)
            parts = [] if suite is None else suite[1]
            names = [entry.name for entry in path.iterdir() if entry.is_dir() and is_run(entry)]
            names.sort(key=lambda name: (not name.startswith("before"), name))
            names.sort(key=lambda name: parts.index(name) if name in parts else len(parts))
            runs = [path / name for name in names]
        if not runs:
            reason = f"no run: neither it nor a folder in it has {', '.join(MARKS[:-1])} or {MARKS[-1]}"
            raise DataMissingError(reason, path)
        found |= dict.fromkeys(runs)
    return list(found)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names of runs: their paths without what they share, so that no page tells where a machine keeps them."""
    whole = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links stay as they are
    if len(whole) == 1:
        return [whole[0].name]
    shared = os.path.commonpath([path.parent for path in whole])
    return [str(path.relative_to(shared)) for path in whole]


def read(path: Path, name: str, size: int) -> RunData:
    """Reads a run; its episodes are read one by one, and `size` of them are kept to read.

    Raises:
        DataError: A file of the run is damaged; the message names file and line.
    """
    files = open_folder(path)
    alone = path.is_file()  # demonstrations, or rollouts by a script: whatever stands beside them
    record: Mapping[str, Any] = files.record() if files.is_evaluation and not alone else {}
    recipe = files.recipe() if files.is_training and not (alone or files.is_evaluation) else {}
    metrics = files.metrics() if recipe else []
    tally, sample = Tally(), EpisodeSample(size)
    for episode in files.episodes(tokens=False):
        tally.add(episode)
        sample.add(episode)
    scores: Mapping[str, Any] = {} if recipe else tally.scores()
    rows: QuestionRows = {}
    asked: QuestionTexts = {}
    if recipe:
        asked = of_training(recipe, files.proposed()) if sample.chosen() else {}
    elif not record:
        record = {"env": tally.env, "agent": tally.agent}
    elif files.is_finished:
        run = read_finished(path)
        scores, rows, asked = dict(run.scores), run.rows, recorded(run.rows)
    else:
        count, samples = record.get("questions"), record.get("samples", 1)
        whole = f" of {count * samples}" if isinstance(count, int) and isinstance(samples, int) else ""
        files.notes.append(
            f"unfinished, {tally.episodes}{whole} episodes: --resume goes on; its scores are those so far"
        )
    shown = [shown_episode(episode, asked) for episode in sample.chosen()]
    return RunData(name, record, rows, scores, recipe, metrics, tally.episodes, shown, files.notes)
