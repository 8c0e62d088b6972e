"""A run's log for Inspect's viewer: one file in the user's cache, written sample by sample, kept while it is true."""

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
from searchgym.train.loop.folder import RECIPE
from searchgym.version import __version__

LOG: Final = "episodes.derived.eval"
"""End of the name of a log that is written for other readers."""
FORMAT: Final = 1
"""Version of what a log holds; a log of another version is written anew."""
EVERY: Final = 250
"""Samples that are held in memory until they are written; progress is told as often."""
LOG_FIELDS: Final = ("sampleId", "epoch", "input", "target", "answer")
"""Columns of the list before those of the scores."""

Progress = Callable[[int, int | None], None]


def kept_log(folder: Path) -> Path:
    """Returns where the log of a run is kept: in the user's cache, since the run's folder may be somebody else's.

    A log that a run's folder brings is never read: it may say anything of the run, and take any memory to read.
    """
    full = folder.resolve()
    digest = hashlib.sha256(os.fsencode(full)).hexdigest()[:24]
    return home() / "views" / f"{full.name[:40]}-{digest}.eval"


def fingerprint(folder: Path, *given: object) -> str:
    """Returns what a log is true of: size and times of the run's files, the version, and what the user gave.

    The time of the last change, which nobody can set, tells files apart that were unpacked with equal sizes and dates.

    Args:
        folder: Folder of the run.
        given: Options that change the log.
    """
    found = {file.name: file.stat() for file in RunReader(folder).files}
    stats = {name: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in found.items()}
    return repr((FORMAT, __version__, stats, *map(str, given)))


def count_of(log: Path, mark: str) -> int | None:
    """Returns the number of episodes of a log that was written from the run as it is; None if there is no such log."""
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
    """Writes a run as a log of Inspect's, one sample at a time; the file is whole or absent.

    Args:
        run: The run.
        log: File to write, ``.eval``; an earlier one is replaced.
        mark: The run's `fingerprint`.
        model: Name or folder of the model whose tokenizer wrote the tokens; by default the run's own.
        progress: Called with (samples done, None).

    Returns:
        Number of samples.

    Raises:
        DataError: An episode cannot be read, or two have the same question, attempt and step.
        DataMissingError: The run has no whole episode.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".view-", dir=log.parent) as building:  # on the log's own file system
        part = Path(building) / LOG
        count = asyncio.run(_write(run, part, mark, model, progress))
        part.replace(log)
    return count


async def _write(run: SavedRun, part: Path, mark: str, model: str | Path | None, progress: Progress) -> int:
    """Writes the samples, then the means over them."""
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
                reason = f"episode {viewed.episode.id!r} is there twice: a viewer cannot tell the two apart"
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
            raise DataMissingError("no whole episode yet: look again when the run has written one", run.files.path)
        seconds = run.record.get("seconds")
        if run.files.is_training:  # which began with its recipe
            seconds = ended.timestamp() - (run.files.folder / RECIPE).stat().st_mtime
        known = isinstance(seconds, (int, float)) and 0 <= seconds < 1e9
        began = ended - timedelta(seconds=float(seconds or 0) if known else 0.0)
        stats = EvalStats(started_at=began.isoformat(), completed_at=ended.isoformat())
        left_out = {"left_out": list(run.notes)} if run.notes else None
        scores = [
            EvalScore(
                name=name,
                scorer=name,
                scored_samples=len(own),
                unscored_samples=len(keys) - len(own),
                metrics={"mean": EvalMetric(name="mean", value=math.fsum(own) / len(own))},
                metadata=left_out,
            )
            for name, own in values.items()
        ]
        results = EvalResults(total_samples=len(keys), completed_samples=len(keys), scores=scores)
        await recorder.log_finish(spec, "success", stats, results, None, header_only=True)
    except BaseException:
        if spec is not None:
            await recorder.log_discard(spec)
        raise
    return len(keys)


def _decoder(run: SavedRun, model: str | Path | None) -> Decode:
    """Returns a function from tokens to text, None where a key's tokenizer is not here, which is noted once."""

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
    """Returns the head of a log: what was run, and how its list is shown."""
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
