"""Log of a run for Inspect's viewer: a file in the user's cache, which is reused until the run changes."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalMetric,
    EvalPlan,
    EvalResults,
    EvalScore,
    EvalSpec,
    EvalStats,
    read_eval_log,
)
from inspect_ai.log._recorders import create_recorder_for_location
from inspect_ai.viewer import TaskSamplesColumn, TaskSamplesView, ViewerConfig

from searchgym.corpora.folders import home
from searchgym.envs.reward import SCORES
from searchgym.errors import DataError, DataMissingError, SearchGymError
from searchgym.eval.run_folder import RunReader
from searchgym.eval.viewing.samples import COUNTS, Decode, numbers_of, sample_key, sample_of
from searchgym.eval.viewing.saved import SavedRun
from searchgym.options import kind_name
from searchgym.records import Episode
from searchgym.rollout.folders import RECIPE
from searchgym.version import __version__

LOG: Final = "episodes.derived.eval"
"""Suffix of the name of a log that is written to a folder of the user's choice."""
FORMAT: Final = 1
"""Version of the contents of a log; a log of another version is rewritten."""
EVERY: Final = 250
"""Number of samples after which the log is flushed to disk and progress is reported."""
LOG_FIELDS: Final = ("sampleId", "epoch", "input", "target", "answer")
"""First columns of the list of samples, followed by the scores."""

Progress = Callable[[int, int | None], None]
"""Function that is called with (samples done, samples in total or None)."""


def kept_log(folder: Path) -> Path:
    """Returns the path of a run's log, in the user's cache, since the run's folder may come from a stranger.

    A log inside the run's folder is never read: it may contain anything, and reading it may take any amount of memory.
    """
    full = folder.resolve()
    digest = hashlib.sha256(os.fsencode(full)).hexdigest()[:24]
    return home() / "views" / f"{full.name[:40]}-{digest}.eval"


def fingerprint(folder: Path, *options: object) -> str:
    """Returns the fingerprint of a log's inputs: sizes and times of the run's files, the version, and the options.

    The change time (ctime), which cannot be set, distinguishes files that were unpacked with equal sizes and dates.

    Args:
        folder: Folder of the run.
        *options: Options that change the log.
    """
    files = {file.name: file.stat() for file in RunReader(folder).files}
    stats = {name: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in files.items()}
    return repr((FORMAT, __version__, stats, *map(str, options)))


def count_of(log: Path, mark: str) -> int | None:
    """Returns the number of episodes in a log with the given fingerprint; None if there is no such log."""
    if not log.is_file():
        return None
    try:
        header = read_eval_log(str(log), header_only=True)
    except Exception:  # a damaged file raises errors of many kinds, and is written anew
        return None
    if header.results is None or (header.eval.metadata or {}).get("fingerprint") != mark:
        return None
    return header.results.total_samples


def write_log(
    run: SavedRun, log: Path, mark: str, model: str | Path | None = None, progress: Progress = lambda done, n: None
) -> int:
    """Writes a run as a log for Inspect, one sample at a time; the file is complete or absent.

    Args:
        run: Run to convert.
        log: File to write, ``.eval``; an earlier one is replaced.
        mark: Fingerprint of the run; see `fingerprint`.
        model: Name or folder of the model whose tokenizer made the tokens. Default: the model that the run names.
        progress: Called with (samples done, None).

    Returns:
        Number of samples.

    Raises:
        DataError: An episode cannot be read, or two have the same question, attempt and step.
        DataMissingError: The run has no complete episode.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".view-", dir=log.parent) as building:  # on the log's own file system
        part = Path(building) / LOG
        count = asyncio.run(_write(run, part, mark, model, progress))
        part.replace(log)
    return count


async def _write(run: SavedRun, part: Path, mark: str, model: str | Path | None, progress: Progress) -> int:
    """Writes the samples of a log, then the means over them; returns the number of samples."""
    recorder = create_recorder_for_location(str(part), str(part.parent))
    decode, spec = _decoder(run, model), None
    keys: set[tuple[str, int]] = set()
    values: dict[str, list[float]] = {}
    ended = datetime.fromtimestamp(run.files.path.stat().st_mtime, UTC)
    try:
        for viewed in run:
            if spec is None:
                spec = _spec(run, viewed.episode, mark, ended)
                await recorder.log_init(spec, str(part))
                await recorder.log_start(spec, EvalPlan())
            key = sample_key(viewed)
            if key in keys:
                reason = f"episode {viewed.episode.id!r} occurs twice: a viewer cannot tell the two apart"
                raise DataError(reason, run.files.path)
            keys.add(key)
            for name, value in numbers_of(viewed.episode).items():
                if math.isfinite(value):
                    values.setdefault(name, []).append(value)
            await recorder.log_sample(spec, sample_of(viewed, decode))
            if len(keys) % EVERY == 0:
                await recorder.flush(spec)
                progress(len(keys), None)
        if spec is None:
            raise DataMissingError("no complete episode yet: try again when the run has written one", run.files.path)
        seconds = run.record.get("seconds")
        if run.files.is_training:  # the recipe is the first file that a training writes
            seconds = ended.timestamp() - (run.files.folder / RECIPE).stat().st_mtime
        valid = isinstance(seconds, (int, float)) and 0 <= seconds < 1e9
        began = ended - timedelta(seconds=float(seconds or 0) if valid else 0.0)
        stats = EvalStats(started_at=began.isoformat(), completed_at=ended.isoformat())
        left_out = {"left_out": list(run.notes)} if run.notes else None
        scores = [
            EvalScore(
                name=name,
                scorer=name,
                scored_samples=len(numbers),
                unscored_samples=len(keys) - len(numbers),
                metrics={"mean": EvalMetric(name="mean", value=math.fsum(numbers) / len(numbers))},
                metadata=left_out,
            )
            for name, numbers in values.items()
        ]
        results = EvalResults(total_samples=len(keys), completed_samples=len(keys), scores=scores)
        await recorder.log_finish(spec, "success", stats, results, None, header_only=True)
    except BaseException:
        if spec is not None:
            await recorder.log_discard(spec)
        raise
    return len(keys)


def _decoder(run: SavedRun, model: str | Path | None) -> Decode:
    """Returns a function that decodes tokens; it returns None, and notes this once, if a key's tokenizer is missing."""

    @functools.cache
    def decoder(key: str) -> Callable[[list[int]], str] | None:
        try:
            return run.decoder(key, model)
        except (SearchGymError, ImportError) as error:
            run.notes.append(f"prompts are left out: {error}")
            return None

    def decode(key: str, ids: Iterable[int]) -> str | None:
        text_of = decoder(key)
        return None if text_of is None else text_of(list(ids))

    return decode


def _spec(run: SavedRun, first: Episode, mark: str, written: datetime) -> EvalSpec:
    """Returns the header of a log: the configuration of the run, and the layout of the list of samples."""
    record = run.record
    name = run.files.folder.resolve().name
    samples = record.get("samples")
    about = {key: value for key, value in record.items() if isinstance(value, (str, int, float))}
    if run.recipe is not None:
        about |= {"recipe": run.recipe.name, "method": kind_name(run.recipe.method), "steps": run.recipe.steps}
    models = [run.recipe.model] if run.recipe is not None else sorted({call.model_key for call in first.calls})
    scores = list(dict.fromkeys([*SCORES, *first.scores, *COUNTS]))
    columns = [TaskSamplesColumn(id=column) for column in LOG_FIELDS]
    columns += [TaskSamplesColumn.score(score) for score in scores]
    view = TaskSamplesView(name="episodes", columns=columns, multiline=False)
    return EvalSpec(
        eval_id=name,
        run_id=name,
        created=written.isoformat(),
        task=f"{name} ({first.env})",
        task_id=name,
        dataset=EvalDataset(name=str(record.get("dataset") or first.env)),
        model=", ".join(models) or first.agent,
        solver=first.agent,
        config=EvalConfig(epochs=samples if isinstance(samples, int) else None),
        metadata={"fingerprint": mark, "folder": str(run.files.folder), **about},
        packages={"searchgym": __version__},
        # episodes hold text of models and of pages from anywhere: the viewer shows it as plain text
        viewer=ViewerConfig(trust_content=False, task_samples_view=view),
    )
