"""Loading of a suite's tasks: the environment of each part with its questions, checked against the card."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from searchgym.corpora.files import read_json, write_atomic
from searchgym.corpora.folders import home
from searchgym.envs.cards import EnvCard
from searchgym.envs.options import TaskOptions, merge_options, with_options
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import CardError, DataError, ScoringError, SearchGymError, UsageError
from searchgym.eval.runner import check_scorable
from searchgym.eval.suites.cards import Subset, SuiteCard, SuitePart, ids_sha256, resolved
from searchgym.questions.subset import draw_subset
from searchgym.records import Question
from searchgym.retrieval.retriever import AnyRetriever


def load_suite_tasks(suite: SuiteCard, options: TaskOptions | None = None) -> dict[str, Task]:
    """Loads every part of a suite; parts with the same corpus share a retriever.

    Args:
        suite: Card of the suite.
        options: Options that override those of the parts.

    Returns:
        Tasks by part.

    Raises:
        DataMissingError: Questions or a corpus are missing; the message names the part.
        DataError: The questions are not those of the card.
    """
    tasks: dict[str, Task] = {}
    shared: dict[str, AnyRetriever] = {}
    for part in suite.parts:
        env = _env(suite, part)
        task_options = merge_options(env, part.options, options or {})
        alone = {"corpus", "retriever", "distractors"} & task_options.keys()
        sharing = not alone and with_options(env, task_options).questions.shares_retriever
        defaults: dict[str, Any] = {"retriever": shared[env.corpus]} if sharing and env.corpus in shared else {}
        task = load_part(suite, part, cast("TaskOptions", {**defaults, **(options or {})}))
        if sharing:
            shared[env.corpus] = task.retriever
        tasks[part.name] = task
    return tasks


def load_part(suite: SuiteCard, part: SuitePart, options: TaskOptions | None = None) -> Task:
    """Loads one part of a suite; see `load_suite_tasks`."""
    card, where = _env(suite, part), f"suite {suite.name}, part {part.name}: "
    try:
        task_options = env_options(part.env, resolved(part.options), options or {})
        task = load_task(card, **task_options)
    except SearchGymError as error:
        if isinstance(error, DataError):
            raise type(error)(where + error.reason, error.path, error.line) from error
        raise CardError(f"{where}{error}") from error
    task = task.asking(questions_of_part(suite, part, task.questions))
    if part.split is not None:
        task = dataclasses.replace(task, split=part.split)
    try:
        check_scorable(task)
    except ScoringError as error:
        raise CardError(f"{where}{error}") from error
    return task


def _env(suite: SuiteCard, part: SuitePart) -> EnvCard:
    """Returns the card of a part's environment."""
    try:
        return find_env(part.env)
    except UsageError as error:
        raise CardError(f"suite {suite.name}, part {part.name}: {error}") from error


def questions_of_part(suite: SuiteCard, part: SuitePart, questions: Sequence[Question]) -> list[Question]:
    """Selects the questions of a part from its data set, after a check of their number and ids.

    Raises:
        DataError: The number of questions or the hash of the selected ids differs from the card.
        CardError: The card names an id that the data set does not have.
    """
    where = f"suite {suite.name}, part {part.name}"
    if len(questions) != part.n:
        raise DataError(f"{where}: expected {part.n} questions, got {len(questions)}: another split or file")
    if part.ids:
        by_id = {question.id: question for question in questions}
        if unknown := sorted(set(part.ids) - by_id.keys()):
            raise CardError(f"{where}: {len(unknown)} ids are not in the data set, such as {unknown[0]!r}")
        questions = [by_id[id] for id in part.ids]
    elif part.subset is not None:
        questions = subset(questions, part.subset)
    sha256 = ids_sha256(question.id for question in questions)
    expected = part.sha256
    if expected is None:  # compare with the first use on this machine
        digest = hashlib.sha256(repr(part).encode()).hexdigest()[:16]  # another rule selects other ids
        file = home() / "suites" / f"{suite.name}-{part.name}-{digest}.json"
        if not file.exists():
            with write_atomic(file) as out:
                out.write((json.dumps({"suite": suite.name, "part": part.name, "sha256": sha256}) + "\n").encode())
        seen = read_json(file)
        expected = str(seen.get("sha256") if isinstance(seen, Mapping) else seen)
    if sha256 != expected:
        raise DataError(
            f"{where}: the ids of the questions have the sha256 {sha256[:16]}..., expected {expected[:16]}...: the "
            "data are another version of this split"
        )
    return list(questions)


def subset(questions: Sequence[Question], rule: Subset) -> list[Question]:
    """Returns a fixed part of questions, drawn by `draw_subset` with one level of strata."""
    return draw_subset(questions, rule.n, rule.seed, [rule.strata])
