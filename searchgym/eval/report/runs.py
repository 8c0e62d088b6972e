"""Run folders as a report reads them: evaluations, trainings and bare episode files, finished or not, old or new."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.corpora.questions import read_questions
from searchgym.errors import DataError, DataMissingError
from searchgym.eval.compare import Rows, read_run
from searchgym.eval.report.blocks import Shown
from searchgym.eval.report.episodes import Asked, Sample, Tally, ends_in_newline, shown, whole_episodes
from searchgym.eval.report.questions import of_training, recorded
from searchgym.eval.runner import SCORES
from searchgym.eval.suites.run import SUITE
from searchgym.options.yaml import read_yaml
from searchgym.records import Question

RECORD: Final = "run.json"
RECIPE: Final = "recipe.yaml"
METRICS: Final = "metrics.jsonl"
EPISODES: Final = "episodes.jsonl"
PROPOSED: Final = "proposed.jsonl"
MARKS: Final = (RECORD, RECIPE, EPISODES)
"""Files of which a run folder has at least one."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What a report shows of one run."""

    name: str
    record: Mapping[str, Any]
    """Content of ``run.json``; of bare episodes, their environment and agent. Empty for a training."""
    scores: Mapping[str, Any]
    """Scores as in ``scores.json``; of an unfinished run or bare episodes, means of the episodes' own scores."""
    rows: Rows
    """Scores by question; empty if the run does not tell them."""
    recipe: Mapping[str, Any]
    """Recipe of a training as plain data; empty if this is none."""
    metrics: Sequence[Mapping[str, Any]]
    """Metrics of a training by step."""
    episodes: int
    """Number of episodes in the folder."""
    sample: Sequence[Shown]
    notes: Sequence[str]
    """What a reader should know: unfinished, half written."""

    @property
    def is_training(self) -> bool:
        """Whether this is a training."""
        return bool(self.recipe)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the run folders and episode files behind paths: a folder of runs stands for all runs directly in it.

    Raises:
        DataMissingError: A path does not exist, or no run is in it.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise DataMissingError("no such run", path)
        own = [path] if path.is_file() or _is_run(path) else list(_parts(path))
        if not own:
            reason = f"no run: neither it nor a folder in it has {', '.join(MARKS[:-1])} or {MARKS[-1]}"
            raise DataMissingError(reason, path)
        found |= dict.fromkeys(own)
    return list(found)


def _is_run(folder: Path) -> bool:
    """Tells whether a folder holds a run."""
    return any((folder / mark).is_file() for mark in MARKS)


def _parts(folder: Path) -> Iterator[Path]:
    """Yields the run folders directly in a folder: parts of a suite in its order, others by name.

    Names that begin with "before" come first, since runs are compared with the first of them.
    """
    suite = read_json(folder / SUITE) if (folder / SUITE).is_file() else {}
    parts = suite.get("parts") if isinstance(suite, dict) else None
    listed = [name for name in parts if isinstance(name, str)] if isinstance(parts, list) else []
    order = {name: place for place, name in enumerate(listed)}
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and _is_run(entry)]
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), not name.startswith("before"), name)):
        yield folder / name


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
    if path.is_file() or not ((path / RECORD).is_file() or (path / RECIPE).is_file()):
        return _read_episodes_alone(path if path.is_file() else path / EPISODES, name, size)
    return _read_evaluation(path, name, size) if (path / RECORD).is_file() else _read_training(path, name, size)


def _read_evaluation(folder: Path, name: str, size: int) -> RunData:
    """Reads an evaluation."""
    notes: list[str] = []
    record = read_json(folder / RECORD)
    if not isinstance(record, dict):
        raise DataError("damaged: expected what was run", folder / RECORD)
    tally, sample = _look(folder / EPISODES, size, notes)
    rows: Rows = {}
    if not (folder / SCORES).is_file():
        asked, samples = record.get("questions"), record.get("samples", 1)
        whole = f" of {asked * samples}" if isinstance(asked, int) and isinstance(samples, int) else ""
        notes.append(f"unfinished, {tally.episodes}{whole} episodes: --resume goes on; its scores are those so far")
        scores = tally.scores()
    else:
        run = read_run(folder)
        scores, rows = dict(run.scores), run.rows
    asked_texts = recorded(rows)
    return RunData(name, record, scores, rows, {}, [], tally.episodes, _shown(sample, asked_texts), notes)


def _read_training(folder: Path, name: str, size: int) -> RunData:
    """Reads a training."""
    notes: list[str] = []
    recipe = read_yaml(folder / RECIPE)
    if not isinstance(recipe, dict) or not recipe:
        raise DataError("damaged: expected a recipe", folder / RECIPE)
    metrics = list(_whole_rows(folder / METRICS, notes))
    if not metrics:
        notes.append("it has no metrics: no step has ended")
    tally, sample = _look(folder / EPISODES, size, notes)
    proposed: Iterable[Question] = []
    if sample and (folder / PROPOSED).is_file() and (folder / PROPOSED).stat().st_size:
        proposed = read_questions(folder / PROPOSED)
    asked = of_training(recipe, proposed) if sample else {}
    return RunData(name, {}, {}, {}, recipe, metrics, tally.episodes, _shown(sample, asked), notes)


def _read_episodes_alone(path: Path, name: str, size: int) -> RunData:
    """Reads episodes without a record: demonstrations, or rollouts by a script."""
    notes: list[str] = []
    tally, sample = _look(path, size, notes)
    record = {"env": tally.env, "agent": tally.agent}
    return RunData(name, record, tally.scores(), {}, {}, [], tally.episodes, _shown(sample, {}), notes)


def _look(path: Path, size: int, notes: list[str]) -> tuple[Tally, list[Any]]:
    """Returns the tally of an episode file, and the sample of its episodes."""
    tally, sample = Tally(), Sample(size)
    for episode in whole_episodes(path, notes):
        tally.add(episode)
        sample.add(episode)
    return tally, sample.chosen()


def _shown(sample: Iterable[Any], asked: Asked) -> list[Shown]:
    return [shown(episode, asked) for episode in sample]


def _whole_rows(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file that a run is writing; a half-written last line is left out and noted."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        for _, row in iter_jsonl(path):
            yield row
    except DataError:
        if ends_in_newline(path):
            raise
        notes.append(f"the last line of {path.name} is half written and was left out")
