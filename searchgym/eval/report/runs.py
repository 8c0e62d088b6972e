"""Runs of a report: evaluations, trainings and single episode files, finished or not, of this or earlier versions."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.errors import DataMissingError
from searchgym.eval.leaderboard.table import ORACLES
from searchgym.eval.report.blocks import ShownEpisode
from searchgym.eval.report.episodes import EpisodeSample, QuestionTexts, Tally, shown_episode
from searchgym.eval.report.questions import of_training, recorded
from searchgym.eval.run_folder import MARKS, FinishedRun, QuestionRows, is_run, open_folder, read_finished, read_suite


@dataclass(frozen=True)
class RunData(FinishedRun):
    """Data of one run for a report.

    An episode file has only its environment and agent as its record; a training has no record. The scores of an
    unfinished run or of an episode file are means over the episodes, without rows of questions.
    """

    recipe: Mapping[str, Any]
    """Recipe of a training as plain data; empty if this is none."""
    metrics: Sequence[Mapping[str, Any]]
    """Metrics of a training by step."""
    episodes: int
    """Number of episodes in the folder."""
    sample: Sequence[ShownEpisode]
    """Episodes to read."""
    notes: Sequence[str]
    """Warnings for the reader, such as that the run is unfinished."""
    date: datetime.date
    """Day (UTC) of the last change to the run's files."""

    @property
    def is_training(self) -> bool:
        """Whether this is a training."""
        return bool(self.recipe)

    @property
    def is_oracle(self) -> bool:
        """Whether this evaluates an agent that reads the gold titles or answers."""
        return self.record.get("agent") in ORACLES


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the run folders and episode files of paths; a folder of runs stands for all runs directly in it.

    Parts of a suite keep its order; other runs are sorted by name. Names that begin with "before" come first, since
    all runs are compared with the first one.

    Raises:
        DataMissingError: A path does not exist, or no run is in it.
    """
    unique: dict[Path, None] = {}
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
        unique |= dict.fromkeys(runs)
    return list(unique)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns the paths of runs without their common parent, so that a page shows no folders of this machine."""
    whole = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links stay as they are
    if len(whole) == 1:
        return [whole[0].name]
    shared = os.path.commonpath([path.parent for path in whole])
    return [str(path.relative_to(shared)) for path in whole]


def read(path: Path, name: str, size: int) -> RunData:
    """Reads a run. Episodes are read one by one; only a sample of `size` of them stays in memory.

    Raises:
        DataError: A file of the run is damaged; the message names file and line.
    """
    files = open_folder(path)
    alone = path.is_file()  # demonstrations, or rollouts by a script: other files in the folder do not count
    record: Mapping[str, Any] = files.record() if files.is_evaluation and not alone else {}
    recipe = files.recipe() if files.is_training and not (alone or files.is_evaluation) else {}
    metrics = files.metrics() if recipe else []
    tally, sample = Tally(), EpisodeSample(size)
    for episode in files.episodes(tokens=False):
        tally.add(episode)
        sample.add(episode)
    scores: Mapping[str, Any] = {} if recipe else tally.scores()
    rows: QuestionRows = {}
    questions: QuestionTexts = {}
    if recipe:
        questions = of_training(recipe, files.proposed()) if sample.chosen() else {}
    elif not record:
        record = {"env": tally.env, "agent": tally.agent}
    elif files.is_finished:
        run = read_finished(path)
        scores, rows, questions = dict(run.scores), run.rows, recorded(run.rows)
    else:
        count, samples = record.get("questions"), record.get("samples", 1)
        whole = f" of {count * samples}" if isinstance(count, int) and isinstance(samples, int) else ""
        files.notes.append(
            f"unfinished: the scores are those of {tally.episodes}{whole} episodes; `--resume` finishes the run"
        )
    episodes = [shown_episode(episode, questions) for episode in sample.chosen()]
    changed = max(file.stat().st_mtime for file in files.files or [path])
    date = datetime.datetime.fromtimestamp(changed, datetime.UTC).date()
    return RunData(name, record, rows, scores, recipe, metrics, tally.episodes, episodes, files.notes, date)
