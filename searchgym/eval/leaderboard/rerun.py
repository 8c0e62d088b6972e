"""Runs a submission again, and records how far the answers agree: the highest tier of a row."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.files import read_json
from searchgym.errors import DataError, DataMissingError, SubmissionError
from searchgym.eval.leaderboard.check import CheckedSubmission
from searchgym.eval.leaderboard.manifest import EPISODES, SubmissionManifest
from searchgym.eval.runner import EvalOptions, evaluate, hardware, write_json
from searchgym.retrieval.identity import identify
from searchgym.rollout.models import Model
from searchgym.rollout.storage import read_episodes
from searchgym.version import __version__

RERUN: Final = "rerun.json"
"""File that records a repetition, beside the manifest."""
AGREE: Final = 0.01
"""Largest difference in EM and F1 between a submission and its repetition: ties of tokens may fall otherwise."""


def run_again(
    checked: CheckedSubmission,
    agent: LoadedAgent,
    models: Mapping[str, Model],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Evaluates an agent again as a submission says, compares, and records the agreement in the submission's folder.

    Args:
        checked: The submission.
        agent: Its agent.
        models: The model behind each role.
        progress: Called with (episodes done, episodes in all).

    Returns:
        What was recorded: ``answers_equal`` of ``episodes``, ``em`` and ``f1`` of the repetition, where and when.

    Raises:
        SubmissionError: The models are others, or EM or F1 differs by more than `AGREE`.
    """
    manifest, folder = checked.manifest, checked.folder
    for role, used in manifest.models.items():
        if role in models and models[role].sha256 != used.sha256:
            reason = f"role {role}: the weights here are not those of {used.name}"
            raise SubmissionError("models", reason, folder)
    if identify(checked.task.retriever) != manifest.retriever:
        raise SubmissionError("retriever", "is not the one that is here: give --retriever", folder)
    options = EvalOptions(manifest.temperature, manifest.seed, samples=manifest.samples)
    with tempfile.TemporaryDirectory() as scratch:
        scores = evaluate(checked.task, agent, Path(scratch) / "run", models, options, progress=progress)
        again = {e.id: e for e in read_episodes(Path(scratch) / "run" / "episodes.jsonl")}
    equal = sum(again[episode.id].answer == episode.answer for episode in checked.scored.episodes)
    for name in ("em", "f1"):
        was, now = checked.scores.get(name), scores.get(name)
        if (was is None) != (now is None) or abs((was or 0.0) - (now or 0.0)) > AGREE:
            told = ["none" if value is None else f"{value:.4f}" for value in (was, now)]
            reason = f"the submission has {told[0]}, run again it is {told[1]}"
            raise SubmissionError(f"scores.{name}", reason, folder)
    record = {
        "episodes_sha256": manifest.files[EPISODES],
        "episodes": len(again),
        "answers_equal": equal,
        "em": scores.get("em"),
        "f1": scores.get("f1"),
        "date": datetime.date.today().isoformat(),
        "searchgym": __version__,
        "hardware": hardware(),
    }
    write_json(folder / RERUN, record)
    return record


def was_rerun(folder: Path, manifest: SubmissionManifest) -> bool:
    """Returns whether a repetition of these very episodes is recorded in a submission's folder.

    The record is that of whoever keeps the leaderboard: what a submitter puts there is removed when it is taken in.

    Raises:
        SubmissionError: The record cannot be read.
    """
    try:
        record = read_json(folder / RERUN)
    except DataMissingError:
        return False
    except DataError as error:
        raise SubmissionError(RERUN, error.reason, folder / RERUN) from error
    return isinstance(record, dict) and record.get("episodes_sha256") == manifest.files[EPISODES]
