"""Texts of the questions of a run: as recorded or, if the run has no record of them, from its generated environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from searchgym.envs.options import RENAMED, with_options
from searchgym.envs.registration import find_env, registered
from searchgym.errors import SearchGymError
from searchgym.eval.report.episodes import QuestionTexts
from searchgym.named import code_refused
from searchgym.questions.question_source import QuestionContext
from searchgym.records import Question

LARGEST: Final = 20_000
"""Maximum number of questions that are generated only for their texts; a foreign recipe may ask for any number."""


def recorded(rows: Mapping[str, Mapping[str, Any]]) -> QuestionTexts:
    """Returns the questions in the rows of an evaluation."""
    questions = {}
    for id, row in rows.items():
        text, golds = row.get("question"), row.get("golds")
        if isinstance(text, str):
            questions[id] = (text, [gold for gold in golds if isinstance(gold, str)] if isinstance(golds, list) else [])
    return questions


def of_training(recipe: Mapping[str, Any], proposed: Iterable[Question]) -> QuestionTexts:
    """Returns the questions of a training: those of its generated environment and those that its proposer made."""
    options = recipe.get("env_options")
    questions = [*_of_env(recipe.get("env"), options if isinstance(options, dict) else {}), *proposed]
    return {question.id: (question.text, question.golds) for question in questions}


def _of_env(env: object, options: Mapping[str, Any]) -> Iterable[Question]:
    """Returns the questions of a shipped environment if they need no files; else none.

    A foreign run names the environment, so only registered ids are looked up, and no file that it names is read.
    """
    changes = options.get("questions", {})
    if env not in registered() or not isinstance(changes, Mapping) or options.keys() & set(RENAMED):
        return []
    try:
        with code_refused(""):
            source = with_options(find_env(str(env)), {"questions": changes}).questions
            world = source.world_spec()
            small = source.count <= LARGEST and (world is None or world.size <= LARGEST)
            return source.load(QuestionContext()) if source.at_hand and small else []
    except SearchGymError:
        return []
