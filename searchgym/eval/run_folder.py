"""Reader of run folders and the names of their files, for finished and unfinished runs.

The folder of an evaluation contains ``run.json`` (the configuration), ``episodes.jsonl`` and, once every question is
done, ``questions.jsonl`` (scores of each question) and ``scores.json``. The folder of a training contains
``recipe.yaml``, ``metrics.jsonl``, episodes with their advantages, and the questions of a proposer. The folder of a
suite contains ``suite.json`` and a run folder for each part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.corpora.folders import EPISODES, RUN
from searchgym.corpora.questions import read_questions
from searchgym.errors import BadLines, DataError, DataMissingError
from searchgym.options.yaml import read_yaml
from searchgym.records import Episode, Question
from searchgym.rollout.folders import RECIPE
from searchgym.rollout.storage import read_episodes, sidecar
from searchgym.train.loop.folder import ADVANTAGES, METRICS, PROPOSED, Advantages, read_advantages

SCORES: Final = "scores.json"
"""File with the scores of a run, written when every question is done."""
QUESTIONS: Final = "questions.jsonl"
"""File with the scores of each question; see `searchgym.eval.scores.question_rows`."""
VERDICTS: Final = "verdicts.jsonl"
"""File with a judge's verdict on each answer; see `searchgym.eval.judged`."""
JUDGE: Final = "judge.json"
"""File with the identity of that judge, and its verdicts on the calibration sample."""
SUITE: Final = "suite.json"
"""File in the folder of a suite's run that names the suite and its parts."""
MARKS: Final = (RUN, RECIPE, EPISODES)
"""Files of which a run folder has at least one."""
QuestionRows = Mapping[str, Mapping[str, Any]]
"""Rows of ``questions.jsonl`` by question id."""
Line = TypeVar("Line")


@dataclass(slots=True)
class RunReader:
    """Reader of one run folder, which reads each file on demand.

    A file that the run is still writing may end in an incomplete line, which is skipped and noted.
    """

    folder: Path
    name: str = EPISODES
    """Name of the episode file, for episodes outside of a run folder."""
    notes: list[str] = field(default_factory=list)
    """Sentences about skipped data, with the reasons."""

    @property
    def path(self) -> Path:
        """Path of the episode file."""
        return self.folder / self.name

    @property
    def is_evaluation(self) -> bool:
        """Whether an evaluation wrote the folder."""
        return (self.folder / RUN).is_file()

    @property
    def is_training(self) -> bool:
        """Whether a training wrote the folder."""
        return (self.folder / RECIPE).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds an evaluation of which every question is done."""
        return (self.folder / SCORES).is_file()

    @property
    def files(self) -> list[Path]:
        """Existing files of the folder that describe its episodes."""
        names = (ADVANTAGES, PROPOSED, RECIPE, RUN, QUESTIONS)
        return [file for file in (self.path, sidecar(self.path), *map(self.folder.joinpath, names)) if file.is_file()]

    def record(self) -> dict[str, Any]:
        """Returns the configuration of an evaluation, from ``run.json``.

        Raises:
            DataMissingError: The folder holds no evaluation.
            DataError: The file is damaged.
        """
        if not self.is_evaluation:
            raise DataMissingError("no such run: give the folder that `searchgym eval --out` wrote", self.folder)
        return _object(self.folder / RUN)

    def scores(self) -> dict[str, Any]:
        """Returns the scores of a finished evaluation."""
        return _object(self.folder / SCORES)

    def question_rows(self) -> dict[str, dict[str, Any]]:
        """Returns the rows of the questions by id; empty if the evaluation has not ended.

        Raises:
            DataError: A row has no id, the id of an earlier row, or a score that is no finite number.
        """
        path = self.folder / QUESTIONS
        rows: dict[str, dict[str, Any]] = {}
        for line, row in iter_jsonl(path) if path.is_file() else ():
            if not isinstance(row.get("id"), str) or row["id"] in rows:
                raise DataError(f"expected the id of another question, got {row.get('id')!r:.60}", path, line)
            for name in ("em", "f1", "judged", "searches"):
                value = row.get(name, 0.0)
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                    raise DataError(f"{name}: expected a number, got {value!r:.60}", path, line)
            rows[row["id"]] = row
        return rows

    def recipe(self) -> dict[str, Any]:
        """Returns the recipe of a training as plain data."""
        recipe = read_yaml(self.folder / RECIPE)
        if not isinstance(recipe, dict) or not recipe:
            raise DataError("damaged: expected a recipe", self.folder / RECIPE)
        return recipe

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics of a training, one row for each step that has ended."""
        path = self.folder / METRICS
        rows = [row for _, row in self._whole(iter_jsonl(path), path)] if _has_content(path) else []
        if not rows:
            self.notes.append("it has no metrics: no step has ended")
        return rows

    def episodes(self, *, tokens: bool = True) -> Iterator[Episode]:
        """Yields the episodes in the order of the file; see `read_episodes`."""
        if _has_content(self.path):
            yield from self._whole(read_episodes(self.path, tokens=tokens), self.path)
        else:
            self.notes.append("it has no episodes")

    def proposed(self) -> list[Question]:
        """Returns the questions that a proposer made for a training; empty without a proposer."""
        path = self.folder / PROPOSED
        return list(read_questions(path)) if _has_content(path) else []

    def advantages(self) -> Advantages:
        """Returns the recorded advantages of a training, by call id; empty if none were recorded."""
        path, bad = self.folder / ADVANTAGES, BadLines(1)  # the last line of a run that still writes
        if not path.is_file():
            return {}
        try:
            advantages = read_advantages(path, bad)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not advantages of calls: {type(error).__name__}: {error}", path) from error
        self.notes += [f"an advantage was skipped: {error}" for error in bad.errors]
        return advantages

    def _whole(self, lines: Iterator[Line], path: Path) -> Iterator[Line]:
        """Yields the parsed lines of a file; an incomplete last line is skipped and noted."""
        with path.open("rb") as file:
            whole = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        try:
            yield from lines
        except DataError as error:
            if error.line is None or error.line <= whole:
                raise
            self.notes.append(f"the last line of {path.name} is incomplete and was skipped (line {error.line})")


def open_folder(path: Path) -> RunReader:
    """Returns a reader of a run folder, given the folder or its episode file."""
    return RunReader(path.parent, path.name) if path.is_file() else RunReader(path)


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"damaged: expected an object, got {content!r:.60}", path)
    return content


@dataclass(frozen=True)
class FinishedRun:
    """Files of a finished evaluation."""

    name: str
    """Name of the run in messages."""
    record: Mapping[str, Any]
    """Configuration of the run, from ``run.json``."""
    rows: QuestionRows
    """Scores of each question, by id."""
    scores: Mapping[str, Any]
    """Scores of the run."""


def read_finished(folder: Path, name: str = "") -> FinishedRun:
    """Reads the folder of a finished evaluation.

    Args:
        folder: Folder of the run.
        name: Name of the run in messages. Default: the path of the folder.

    Raises:
        DataError: The folder holds no finished run, or a damaged one.
    """
    reader = RunReader(folder)
    record, scores = reader.record(), reader.scores()
    if not (folder / QUESTIONS).is_file():
        reason = "has no scores of questions: `searchgym eval` with --resume and --out writes them"
        raise DataMissingError(reason, folder / QUESTIONS)
    return FinishedRun(name or str(folder), record, reader.question_rows(), scores)


def read_suite(folder: Path) -> tuple[str, list[str]] | None:
    """Returns the name of the suite whose run a folder holds, and the names of its parts; None if it holds none.

    Raises:
        DataError: ``suite.json`` is damaged.
    """
    path = folder / SUITE
    if not path.is_file():
        return None
    record = _object(path)
    suite, parts = record.get("suite"), record.get("parts")
    if not isinstance(suite, str) or not isinstance(parts, list):
        raise DataError("damaged: expected the name and the parts of a suite", path)
    return suite, [name for name in parts if isinstance(name, str) and name]


def holds_run(folder: Path) -> bool:
    """Checks whether a folder holds an evaluation, finished or not."""
    return (folder / RUN).exists()


def is_run(folder: Path) -> bool:
    """Checks whether a folder holds an evaluation, a training or an episode file."""
    return any((folder / mark).is_file() for mark in MARKS)


def seconds_of(folder: Path) -> float:
    """Returns the wall-clock seconds of a run's episodes, summed over resumed sessions and the parts of a suite."""
    folders: Sequence[Path] = [folder] if holds_run(folder) else sorted(filter(holds_run, folder.iterdir()))
    return float(sum(RunReader(run).record().get("seconds", 0.0) for run in folders))
