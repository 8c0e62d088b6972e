"""Evaluation of an agent on a suite: one run folder per part, and the scores of all parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.folders import check_claim
from searchgym.envs.task import Task
from searchgym.errors import RunExistsError, ScoringError
from searchgym.eval.run_folder import SCORES, SUITE, holds_run, read_suite
from searchgym.eval.runner import EvalOptions, check_scorable, evaluate, write_json
from searchgym.eval.scores import Scores
from searchgym.rollout.models import Model

MEANS: Final = ("em", "f1", "judged")
"""Scores that are averaged over the parts."""

Evaluate = Callable[[str, Task, Path, EvalOptions], Scores]
"""Function that evaluates a part: its name, task, folder and options."""


def check_suite_out(out: Path, suite: str, *, resume: bool, overwrite: bool) -> None:
    """Checks that a suite may be evaluated into a folder, before anything is loaded; see `check_claim`.

    Raises:
        RunExistsError: The folder holds a run of another suite.
    """
    recorded = read_suite(out)
    if recorded is not None and recorded[0] != suite:
        raise RunExistsError(f"{out} holds a run of suite {recorded[0]}: choose another --out")
    what = f"a run of suite {suite}"
    check_claim(out, SUITE, what, resume=resume and (overwrite or recorded is not None), overwrite=overwrite)


def evaluate_suite(
    suite: str,
    tasks: Mapping[str, Task],
    agent: LoadedAgent,
    out: Path,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions | None = None,
    run: Evaluate | None = None,
) -> dict[str, Any]:
    """Runs an agent on every part of a suite; finished episodes survive an interruption.

    Args:
        suite: Name of the suite.
        tasks: Tasks by part, as `load_suite_tasks` returns them.
        agent: The workflow and its roles.
        out: Folder of the run; each part gets a run folder in it.
        models: Model of each role.
        options: Options of the evaluation; `resume` continues unfinished parts and keeps finished ones.
        run: Function that evaluates a part. Default: `evaluate`.

    Returns:
        ``suite``, ``agent``, ``n``, ``parts`` (scores by part), and the means of `MEANS`: over the parts (``*_parts``,
        as usual in publications) and over all questions (``*_questions``).
    """
    options = options or EvalOptions()
    check_suite_out(out, suite, resume=options.resume, overwrite=options.overwrite)
    check_parts(suite, tasks)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SUITE, {"suite": suite, "agent": agent.name, "parts": list(tasks)})
    parts: dict[str, Scores] = {}
    for name, task in tasks.items():
        part_options = dataclasses.replace(options, resume=options.resume and holds_run(out / name))
        if run is None:
            parts[name] = evaluate(task, agent, out / name, models, part_options)
        else:
            parts[name] = run(name, task, out / name, part_options)
    scores = {"suite": suite, "agent": agent.name, "n": sum(part["n"] for part in parts.values())}
    scores |= {"parts": parts, **suite_means(parts)}
    write_json(out / SCORES, scores)
    return scores


def check_parts(suite: str, tasks: Mapping[str, Task]) -> None:
    """Checks that every part of a suite can be scored, before the first one runs.

    Raises:
        ScoringError: A part cannot be scored; the message names it, see `check_scorable`.
    """
    for name, task in tasks.items():
        try:
            check_scorable(task)
        except ScoringError as error:
            raise ScoringError(f"suite {suite}, part {name}: {error}") from error


def suite_means(parts: Mapping[str, Scores]) -> dict[str, float]:
    """Returns mean scores over parts (each part has equal weight) and over questions (each question has equal weight).

    A part without a score is left out of the means of that score, and so are unanswerable questions.
    """
    means: dict[str, float] = {}
    for name in MEANS:
        scored = [part for part in parts.values() if part.get(name) is not None]
        values = [(part.get("answerable") or part["n"], part[name] or 0.0) for part in scored]
        if not values:
            continue
        means[f"{name}_parts"] = math.fsum(value for _, value in values) / len(values)
        means[f"{name}_questions"] = math.fsum(n * value for n, value in values) / sum(n for n, _ in values)
    return means
