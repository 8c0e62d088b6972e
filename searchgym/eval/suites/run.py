"""Evaluation of an agent on a suite: one run folder per part, and their scores together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.files import read_json
from searchgym.envs.task import Task
from searchgym.errors import RunExistsError, ScoringError, UsageError
from searchgym.eval.runner import SCORES, EvalOptions, check_scorable, evaluate, write_json
from searchgym.eval.scores import Scores
from searchgym.rollout.models import Model

SUITE: Final = "suite.json"
"""File of a suite's run that names the suite."""
MEANS: Final = ("em", "f1")
"""Scores of which the parts' mean is taken."""

Evaluate = Callable[[str, Task, Path, EvalOptions], Scores]
"""Function that evaluates a part: its name, task, folder and options."""


def check_suite_out(out: Path, suite: str, *, resume: bool, overwrite: bool) -> None:
    """Checks that a suite may be evaluated into a folder, before anything is loaded.

    Raises:
        RunExistsError: The folder holds another run, or one of this suite and neither `resume` nor `overwrite` is set.
    """
    if resume and overwrite:
        raise UsageError("resume and overwrite exclude each other")
    if not out.is_dir() or not any(out.iterdir()):
        return
    record = read_json(out / SUITE) if (out / SUITE).is_file() else {}
    held = record.get("suite") if isinstance(record, dict) else None
    if held != suite:
        raise RunExistsError(f"{out} holds {f'a run of suite {held}' if held else 'other files'}: choose another --out")
    if not (resume or overwrite):
        raise RunExistsError(f"{out} holds a run of suite {suite}: --resume goes on, --overwrite starts again")


def evaluate_suite(
    suite: str,
    tasks: Mapping[str, Task],
    agent: LoadedAgent,
    out: Path,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions | None = None,
    run: Evaluate | None = None,
) -> dict[str, Any]:
    """Runs an agent on every part of a suite; what has been done survives a kill.

    Args:
        suite: Name of the suite.
        tasks: Name of the part to task, as `load_suite_tasks` returns them.
        agent: The workflow and its roles.
        out: Folder of the run; each part gets a run folder in it.
        models: The model behind each role.
        options: How it is run; `resume` skips what is there.
        run: How a part is evaluated, by default `evaluate`.

    Returns:
        ``suite``, ``n``, ``parts`` (name to scores), and ``em`` and ``f1``: the mean over the parts, as tables of this
        field give it (``*_parts``), and over all questions (``*_questions``).
    """
    options = options or EvalOptions()
    check_suite_out(out, suite, resume=options.resume, overwrite=options.overwrite)
    check_parts(suite, tasks)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SUITE, {"suite": suite, "agent": agent.name, "parts": list(tasks)})
    parts: dict[str, Scores] = {}
    for name, task in tasks.items():
        own = dataclasses.replace(options, resume=options.resume and (out / name / "run.json").exists())
        if run is None:
            parts[name] = evaluate(task, agent, out / name, models, own)
        else:
            parts[name] = run(name, task, out / name, own)
    scores = {"suite": suite, "agent": agent.name, "n": sum(part["n"] for part in parts.values())}
    scores |= {"parts": parts, **suite_means(parts)}
    write_json(out / SCORES, scores)
    return scores


def check_parts(suite: str, tasks: Mapping[str, Task]) -> None:
    """Checks that every part of a suite can be scored, before the first one is run.

    Raises:
        ScoringError: One cannot; the message names it, see `check_scorable`.
    """
    for name, task in tasks.items():
        try:
            check_scorable(task)
        except ScoringError as error:
            raise ScoringError(f"suite {suite}, part {name}: {error}") from error


def suite_means(parts: Mapping[str, Scores]) -> dict[str, float]:
    """Returns the means over parts (each counts the same) and over questions (each counts the same).

    A part without a score is left out of its means, as are questions without an answer.
    """
    means: dict[str, float] = {}
    for name in MEANS:
        scored = [part for part in parts.values() if part.get(name) is not None]
        values = [(part.get("answerable") or part["n"], part[name]) for part in scored]
        if not values:
            continue
        means[f"{name}_parts"] = math.fsum(value for _, value in values) / len(values)
        means[f"{name}_questions"] = math.fsum(n * value for n, value in values) / sum(n for n, _ in values)
    return means
