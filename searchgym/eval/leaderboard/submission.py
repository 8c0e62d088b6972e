"""Makes submissions of finished runs, and of numbers that others published."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from annotated_types import Interval

from searchgym.corpora.files import read_json, sha256_file, write_atomic, write_jsonl
from searchgym.corpora.folders import appearing
from searchgym.errors import CardError, DataError, RunExistsError, SubmissionError, UsageError
from searchgym.eval.leaderboard.episodes import prediction, write_episodes
from searchgym.eval.leaderboard.manifest import (
    EPISODES,
    FORMAT,
    MANIFEST,
    MAX_NAME,
    NAME,
    PREDICTIONS,
    SubmissionManifest,
    UsedModel,
    plain,
    read_manifest,
)
from searchgym.eval.leaderboard.tasks import BUDGETS, Tasks
from searchgym.eval.leaderboard.verdicts import write_verdicts
from searchgym.eval.run_folder import JUDGE, VERDICTS, RunReader, read_suite
from searchgym.eval.runner import questions_sha256
from searchgym.eval.scores import score_each, summarise
from searchgym.options import Options, read
from searchgym.records import simulated_share
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.storage import read_episodes

FILES: Final = (PREDICTIONS, EPISODES, VERDICTS, JUDGE)
"""Files of a submission beside its manifest; the last two of a judged run only."""
REPORTED: Final = "reported.json"
"""File of a row with reported numbers."""
COPIED: Final = (
    "env", "dataset", "split", "questions", "questions_sha256", "corpus_sha256", "retriever", "protocol", "scorer",
    "reward", "agent", "workflow", "prompts", "temperature", "samples", "seed", "searchgym", *BUDGETS,
)  # fmt: skip
"""Fields of a manifest that are copied from the record of the run."""


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a submission that are not in its run."""

    name: str
    """Name of the row."""
    by: str
    """Submitter."""
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())
    url: str | None = None
    training_seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Options):
    """A row with the numbers of a publication, which cannot be recomputed."""

    format: str
    name: str
    by: str
    suite: str
    part: str
    source: str
    """Source of the numbers: paper and table, or address."""
    differs: str
    """Differences from the suite: corpus, retriever, budgets, metric, number of questions."""
    em: Annotated[float, Interval(ge=0, le=1)]
    f1: Annotated[float, Interval(ge=0, le=1)] | None = None


def runs_of(folder: Path, suite: str | None = None, part: str | None = None) -> dict[tuple[str, str], Path]:
    """Returns (suite, part) to run folder, for the run of a suite or of one of its parts.

    Raises:
        UsageError: The folder holds no finished run, or the suite and part of a single run are not given.
    """
    evaluated = read_suite(folder)
    if evaluated is not None:
        runs = {(evaluated[0], name): folder / name for name in evaluated[1] if part in (None, name)}
    elif suite is None or part is None:
        raise UsageError(f"{folder} is no run of a suite: give --suite and --part, or evaluate a suite")
    else:
        runs = {(suite, part): folder}
    for path in runs.values():
        if not RunReader(path).is_finished:
            raise UsageError(f"{path} holds no finished run: evaluate it with --resume first")
    if not runs:
        raise UsageError(f"{folder} has no part {part!r}")
    return runs


def write_submission(run: Path, suite: str, part: str, about: About, out: Path, tasks: Tasks | None = None) -> Path:
    """Makes a submission of a finished run; the folder appears when it is complete.

    Args:
        run: Folder of the run.
        suite: Name of the suite.
        part: Name of the part of the suite that was run.
        about: Name of the row, and who submits it.
        out: Folder to make.
        tasks: Tasks that are loaded already.

    Returns:
        `out`.

    Raises:
        RunExistsError: `out` exists.
        DataError: The run is damaged, or not one of this part of the suite; the message names the field.
    """
    if out.exists():
        raise RunExistsError(f"{out} exists: two submissions of one name and training seed; choose another --name")
    reader = RunReader(run)
    record = reader.record()
    if missing := sorted({*COPIED, "models", "seconds", "hardware"} - record.keys()):
        raise DataError(f"its record lacks {', '.join(missing)}: damaged; evaluate it again", run)
    if record.get("faults"):
        raise DataError("faults: the leaderboard has no track in which searches fail; evaluate without --faults", run)
    if record.get("guided"):
        raise DataError("guided: rows have samples that begin at the question; evaluate without --guided", run)
    if record.get("browse"):
        raise DataError("browse: the leaderboard has no track in which pages are opened; evaluate without browse", run)
    if record.get("sources"):
        reason = "the leaderboard has no track with further retrievers; evaluate without retrievers"
        raise DataError(f"sources {', '.join(record['sources'])}: {reason}", run)
    task = (tasks or Tasks()).of_run(suite, part, record)
    if record["env"] != task.card.id or record["questions_sha256"] != questions_sha256(task.questions):
        reason = f"the run asked {record['questions']} questions of {record['env']}, suite {suite} asks "
        raise DataError(f"{reason}{len(task.questions)} of {task.card.id}, or others: evaluate the suite", run)
    episodes = list(read_episodes(reader.path))
    if any(simulated_share(episode.searches) for episode in episodes):
        reason = "its pages were written by a model: a leaderboard's rows search the corpus of their track"
        raise DataError(f"retriever: {reason}; evaluate with a real retriever", run)
    scored = score_each(task, episodes, record["samples"])
    with appearing(out) as folder:
        write_episodes(folder / EPISODES, scored.episodes, whole=passages_of(task.retriever) is None)
        write_jsonl(folder / PREDICTIONS, (prediction(e, task.by_id[e.question_id]) for e in scored.episodes))
        scores = summarise(scored) | write_verdicts(run, folder, scored)
        manifest = _manifest(record, suite, part, about, folder, scores)
        _write(folder / MANIFEST, plain(manifest))
    return out


def is_submission_of(folder: Path, run: Path, suite: str, part: str, about: About, tasks: Tasks) -> bool:
    """Tells whether a folder holds the submission that `write_submission` makes of a run, apart from the date.

    Raises:
        SubmissionError: The folder holds no submission, or one that was edited.
        DataError: See `write_submission`.
    """
    there = read_manifest(folder)
    with tempfile.TemporaryDirectory(prefix="searchgym-") as scratch:
        manifest = read_manifest(write_submission(run, suite, part, about, Path(scratch) / "submission", tasks))
    return dataclasses.replace(manifest, date=there.date, seal={}) == dataclasses.replace(there, seal={})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON in ASCII, so that different texts of a submission never look the same."""
    with write_atomic(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def _manifest(
    record: Mapping[str, Any], suite: str, part: str, about: About, folder: Path, scores: Mapping[str, Any]
) -> SubmissionManifest:
    """Returns the manifest of a run."""
    models = {}
    for role, (name, sha256, *engine) in record["models"].items():
        revision = name if re.fullmatch(r"[0-9a-f]{40}", name) else None  # a snapshot of the hub has that name
        models[role] = {"name": name, "sha256": sha256, "revision": revision, "engine": "".join(engine)}
    fields: dict[str, Any] = {
        "format": FORMAT,
        **dataclasses.asdict(about),
        "suite": suite,
        "part": part,
        **{name: record[name] for name in COPIED},
        "models": {role: UsedModel(**model) for role, model in models.items()},
        "template": record.get("template") or {},
        "commit": record.get("commit"),
        "hardware": record["hardware"],
        "seconds": record["seconds"],
        "files": {name: sha256_file(file) for name in FILES if (file := folder / name).is_file()},
        "scores": dict(scores),
    }
    try:
        return read(SubmissionManifest, fields, "manifest")
    except CardError as error:
        raise DataError(f"makes no manifest: {error}", folder) from error


def write_reported(row: Reported, out: Path) -> Path:
    """Writes a row with reported numbers; raises the errors of `write_submission` and `read_reported`."""
    if out.exists():
        raise RunExistsError(f"{out} exists: choose another --name")
    with appearing(out) as folder:
        _write(folder / REPORTED, dataclasses.asdict(row))
        read_reported(folder)
    return out


def read_reported(folder: Path) -> Reported:
    """Reads a row with reported numbers.

    Raises:
        SubmissionError: A field is missing or has no possible value.
    """
    path = folder / REPORTED
    try:
        row = read(Reported, read_json(path), "reported")
    except (CardError, DataError) as error:
        raise SubmissionError(REPORTED, str(error), path) from error
    for name in ("name", "by", "source", "differs", "suite", "part"):
        value = getattr(row, name)
        if not value.strip() or len(value) > 4 * MAX_NAME or not NAME.fullmatch(value):
            raise SubmissionError(name, f"expected one line of text, got {value!r:.60}", path)
    return row


def folder_name(name: str, training_seed: int | None = None) -> str:
    """Returns the name of the folder of a row: its letters and digits, and the training seed."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not slug:
        raise UsageError(f"the name {name!r} has no letter or digit of which the folder's name could be made")
    return slug if training_seed is None else f"{slug}_seed{training_seed}"
