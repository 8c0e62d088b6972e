"""Texts of the questions that a run asked: as it recorded them or, for runs that did not, of generated environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from searchgym.cards import EnvCard, WorldSpec
from searchgym.corpora.own import home
from searchgym.corpora.questions import read_questions
from searchgym.corpora.worlds import cached_world
from searchgym.envs.data import bundled_file
from searchgym.envs.registration import find_env, registered
from searchgym.errors import SearchGymError
from searchgym.options import read
from searchgym.records import Question
from searchgym.report.episodes import Asked

LARGEST: Final = 20_000
"""Maximum number of questions of a world that is generated for their texts alone: a recipe of others may name any."""


def recorded(rows: Mapping[str, Mapping[str, Any]]) -> Asked:
    """Returns the questions that the rows of an evaluation tell."""
    found = {}
    for id, row in rows.items():
        text, golds = row.get("question"), row.get("golds")
        if isinstance(text, str):
            found[id] = (text, [gold for gold in golds if isinstance(gold, str)] if isinstance(golds, list) else [])
    return found


def of_training(recipe: Mapping[str, Any], proposed: Iterable[Question]) -> Asked:
    """Returns the questions of a training: those that were proposed for it, and those of a generated environment."""
    options = recipe.get("env_options")
    return _asked([*_of_env(recipe.get("env"), options if isinstance(options, dict) else {}), *proposed])


def _asked(questions: Iterable[Question]) -> Asked:
    """Returns texts and gold answers by question id."""
    return {question.id: (question.text, question.golds) for question in questions}


def _of_env(env: object, options: Mapping[str, Any]) -> Iterable[Question]:
    """Returns the questions of an environment that ships, if nothing needs to be loaded for them; else none.

    A run of others names the environment: only registered ids are looked up, and no file that it names is read.
    """
    if env not in registered() or "questions" in options:
        return []
    card = find_env(str(env))
    if card.questions.bundled:
        return read_questions(bundled_file(card.questions.bundled))
    return _of_world(card, options)


def _of_world(card: EnvCard, options: Mapping[str, Any]) -> Iterable[Question]:
    """Returns the questions of a generated world; none of one that cannot be built, or is too large."""
    given = options.get("world", {})
    if card.world is None or not isinstance(given, dict):
        return []
    try:
        spec = read(WorldSpec, dataclasses.asdict(card.world) | given, card.id)
        return read_questions(cached_world(spec, home() / "worlds") / "questions.jsonl") if spec.size <= LARGEST else []
    except SearchGymError:
        return []
