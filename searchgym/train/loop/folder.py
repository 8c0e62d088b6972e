"""The folder of a training run: recipe, metrics, curve, episodes, advantages, checkpoints.

Each checkpoint records the lengths of the files that grow (metrics, episodes, advantages). On resuming, the files are
truncated to these lengths, so that they contain each step once and completely.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, overload

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import dump_line, iter_jsonl, write_atomic
from searchgym.corpora.folders import lock_folder
from searchgym.corpora.questions import question_row
from searchgym.errors import BadLines, RunExistsError, UsageError
from searchgym.options import plain
from searchgym.records import Episode, Question
from searchgym.rollout.folders import RECIPE
from searchgym.rollout.storage import EpisodeWriter, sidecar
from searchgym.train.algorithms.samples import Sample
from searchgym.train.loop.checkpoint import list_checkpoints
from searchgym.train.recipe.extension import resume_problem, with_settings_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe, dump_recipe

Advantages = Mapping[str, npt.NDArray[np.float32]]
"""Advantages of a call's tokens by call id; (1,) if all tokens have the same."""
Row = dict[str, float]
"""Metrics of one step, by name."""
METRICS: Final = "metrics.jsonl"
EPISODES: Final = "episodes.jsonl"
ADVANTAGES: Final = "episodes.advantages.jsonl"
PROPOSED: Final = "proposed.jsonl"
"""File of the questions proposed in the run, each once, in the format ``searchgym``."""
SAMPLED: Final = "sampled"
"""Folder of the responses since the last checkpoint; see `searchgym.rollout.replay.journal`."""
VARYING: Final = ("time/", "memory/")
"""Prefixes of the metrics that differ from run to run; all other metrics are reproducible."""


class Rows(Sequence[Row]):
    """Metrics of each step of a run, 8 bytes a number, since a run holds all of them to its end."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._rows: list[tuple[tuple[str, ...], array[float]]] = []
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Adds the metrics of the next step."""
        names = tuple(row)
        self._rows.append((self._names.setdefault(names, names), array("d", row.values())))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [dict(zip(*row, strict=True)) for row in self._rows[at]]
        return dict(zip(*self._rows[at], strict=True))


class RunFolder:
    """An open run folder, locked against other processes until it is closed.

    Args:
        path: The folder; created if needed.
        recipe: Recipe of the run; written as ``recipe.yaml``.
        resume: Continue the run in the folder.

    Raises:
        RunExistsError: The folder is not empty and `resume` is false, or another process is using it.
        UsageError: The folder has no run to resume, or a run that cannot be resumed with this recipe.
    """

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        check_run_folder(path, recipe, resume=resume)
        self._open = ExitStack()
        self._open.enter_context(lock_folder(path))
        self.checkpoints.mkdir(exist_ok=True)
        with write_atomic(path / RECIPE) as file:
            file.write(dump_recipe(recipe).encode("utf-8"))
        self._recipe = recipe
        self.rows = Rows()

    # -- opening and closing ---------------------------------------------------------------------------------------

    @property
    def episodes(self) -> Path:
        """Path of the training episodes."""
        return self.path / EPISODES

    @property
    def advantages(self) -> Path:
        """Path of the advantages by call id; see `read_advantages`."""
        return self.path / ADVANTAGES

    @property
    def proposed(self) -> Path:
        """Path of the proposed questions; it exists only if the run has a proposer."""
        return self.path / PROPOSED

    @property
    def metrics(self) -> Path:
        """Path of the metrics, one JSON line per step."""
        return self.path / METRICS

    def newest_checkpoint(self) -> Path | None:
        """Returns the folder of the newest complete checkpoint; None if no checkpoint exists."""
        return next(reversed(list_checkpoints(self.checkpoints).values()), None)

    def start(self, sizes: Mapping[str, int], step: int) -> None:
        """Opens the files that grow, truncated to their lengths at a checkpoint.

        Args:
            sizes: Lengths that `sizes` returned at the checkpoint; empty for a new run.
            step: Step of the checkpoint.
        """
        for file in _appended(self.path):
            if file.exists():
                with file.open("rb+") as stream:
                    stream.truncate(sizes.get(file.name, 0))
        if self.metrics.exists() and self.metrics.stat().st_size:
            self.rows = Rows(row for _, row in iter_jsonl(self.metrics))
        self._metrics: BinaryIO = self._open.enter_context(self.metrics.open("ab"))
        self._advantages: BinaryIO = self._open.enter_context(self.advantages.open("ab"))
        self._writer = self._open.enter_context(EpisodeWriter(self.episodes))
        proposed_rows = iter_jsonl(self.proposed) if self.proposed.exists() and self.proposed.stat().st_size else ()
        self._written = {row["id"] for _, row in proposed_rows}
        log = self._recipe.log
        self._board = self._open.enter_context(_tensorboard(self.path, step)) if log.tensorboard else None
        self._wandb = _wandb(log.wandb, self.path, self._recipe) if log.wandb else None
        if self._wandb is not None:
            self._open.callback(self._wandb.finish)

    def sizes(self) -> dict[str, int]:
        """Returns the lengths in bytes of the files that grow, by name."""
        return {file.name: file.stat().st_size for file in _appended(self.path) if file.exists()}

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def log(self, step: int, row: Row) -> None:
        """Writes the metrics of one step."""
        self.rows.append(whole := {"step": step} | row)
        self._metrics.write(dump_line(whole))
        self._metrics.flush()
        if self._board is not None:
            for name, value in row.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(row, step=step)

    def write_questions(self, questions: Sequence[Question]) -> None:
        """Writes the questions proposed for a step, without those already written for earlier steps."""
        fresh = [question for question in questions if question.id not in self._written]
        if fresh:
            with self.proposed.open("ab") as file:
                file.write(b"".join(dump_line(question_row(question)) for question in fresh))
            self._written |= {question.id for question in fresh}

    def write_episodes(self, step: int, episodes: Sequence[Episode], samples: Sequence[Sample]) -> None:
        """Writes the episodes of a step and the advantages of their calls, if the recipe logs this step."""
        every = self._recipe.log.episodes_every
        if not every or step % every:
            return
        for episode in episodes:
            self._writer.write(episode)
        for sample in samples:
            for call, name in zip(sample.calls, sample.call_ids, strict=True):
                values = sample.advantage[call.start : call.end].tolist()
                constant = len(set(values)) == 1
                self._advantages.write(
                    dump_line({"call": name, "step": step, "advantage": values[0] if constant else values})
                )
        self._advantages.flush()

    def plot_curve(self, metric: str) -> None:
        """Plots reward and validation score by step as ``curve.png``, one above the other.

        They have separate axes because they measure different things: the reward is from sampled episodes on training
        questions, the score from greedy episodes on other questions.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        panels = {
            "rollout/reward": ("-", "sampled episodes, training questions"),
            f"validation/{metric}": ("o-", "greedy episodes, validation questions"),
            "proposer/signal": ("-", "proposed questions that some attempts, but not all, got right"),
            "proposer/hops": ("-", "pages that a proposed question needs"),
            "curriculum/stage": ("-", "stage of the curriculum"),
        }
        curves = {name: [(row["step"], row[name]) for row in self.rows if name in row] for name in panels}
        curves = {name: points for name, points in curves.items() if points}
        figure = Figure(figsize=(7, 1 + 2 * max(len(curves), 2)), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.suptitle(self._recipe.name)
        rows = figure.subplots(max(len(curves), 1), 1, sharex=True, squeeze=False)
        for (name, points), axes in zip(curves.items(), rows[:, 0], strict=False):
            style, title = panels[name]
            axes.plot(*zip(*points, strict=True), style, markersize=4)
            axes.set_title(title, loc="left", fontsize="small")
            axes.set_ylabel(name)
            axes.grid(alpha=0.3)
        rows[-1, 0].set_xlabel("step")
        rows[-1, 0].xaxis.get_major_locator().set_params(integer=True)
        with write_atomic(self.path / "curve.png") as file:
            canvas.print_png(file)  # type: ignore[no-untyped-call]


def check_run_folder(path: Path, recipe: Recipe, *, resume: bool) -> None:
    """Raises an error if a run cannot start or be resumed in a folder; see `RunFolder`."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file: the output must be a folder")
    record = path / RECIPE
    if not resume:
        if path.exists() and any(entry.name != ".lock" for entry in path.iterdir()) and not _unused(path):
            hint = "continue it with --resume, or choose another folder" if record.exists() else "choose another folder"
            what = "a run" if record.exists() else "files of something else"
            raise RunExistsError(f"{path} holds {what}: {hint}")
    elif not record.exists():
        raise UsageError(f"{path} holds no run to resume")
    else:
        done = max(list_checkpoints(path / "checkpoints"), default=0)
        before = read_recipe(record)
        if problem := resume_problem(before, with_settings_of(recipe, before), done):
            raise UsageError(f"{path} holds a run that cannot be resumed like this: {problem}")


def _unused(path: Path) -> bool:
    """Returns True if a folder is from a run that stopped before its first episodes and can be overwritten."""
    episodes, metrics = path / EPISODES, path / METRICS
    written = episodes.exists() and episodes.stat().st_size
    rows = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    run_files = {file.name for file in _appended(path)}
    run_files |= {RECIPE, SAMPLED, "checkpoints", "tensorboard", ".lock", "heartbeat.json", "ranks"}
    others = {entry.name for entry in path.iterdir()} - run_files
    return not (written or rows > 1 or others or list_checkpoints(path / "checkpoints"))


def _appended(path: Path) -> list[Path]:
    """Returns the files of a run folder that grow."""
    return [path / METRICS, path / EPISODES, sidecar(path / EPISODES), path / ADVANTAGES, path / PROPOSED]


def read_advantages(path: Path, bad: BadLines | None = None) -> Advantages:
    """Reads a sidecar of advantages.

    Args:
        path: The file.
        bad: Tolerance for bad lines, such as the last line of a running training. Default: none.

    Returns:
        ``{call id: advantages}``: (1,) if all tokens of a call have the same advantage, else one per token. If several
        steps used an id, those of the last step.
    """
    if not path.stat().st_size:  # no group of the run had signal
        return {}
    return {row["call"]: np.atleast_1d(np.array(row["advantage"], np.float32)) for _, row in iter_jsonl(path, bad)}


def _tensorboard(path: Path, step: int) -> Any:
    """Returns a TensorBoard writer that hides the entries of an interrupted run past `step`."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)


def _wandb(project: str | None, path: Path, recipe: Recipe) -> Any:
    """Returns a Weights & Biases run, which a resumed run continues."""
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise UsageError("log.wandb needs Weights & Biases: pip install wandb, or leave log.wandb out") from None
    return wandb.init(
        project=project, name=recipe.name, id=path.name, dir=str(path), config=plain(recipe), resume="allow"
    )
