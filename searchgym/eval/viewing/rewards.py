"""Rewards of a saved run's calls, by the credit and the environment that its recipe names, with nothing to search."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from searchgym.agents.base import read_agent
from searchgym.envs.cards import EnvCard
from searchgym.envs.options import merge_options, with_options
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.task import Task, load_task
from searchgym.eval.rows import Terms
from searchgym.named import code_refused
from searchgym.options.cards import find_card, load_card
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import NullRetriever
from searchgym.train.credit.credit import Credit, groups_of
from searchgym.train.recipe.recipe import Recipe

REMEDY: Final = ": `view` and `show` import it with --run-code, --explain by a recipe of yours that names the same"
"""What to do where a run names code."""
SEARCHED: Final = frozenset({"retriever", "retrievers", "distractors", "browse"})
"""Options of an environment that say what is searched and how."""


def asked_task(env: str, options: Mapping[str, Any]) -> Task:
    """Returns the environment of a saved run with its questions and its reward, and nothing to search.

    Args:
        env: Id of the environment, or a path to its card, which is not registered: it may be somebody else's.
        options: Options that the run gave it.

    Raises:
        SearchGymError: See `load_task`.
    """
    by_path = env.endswith((".yaml", ".yml"))
    card = load_card(EnvCard, find_card("envs", env)) if by_path else find_env(env)
    given = merge_options(card, {} if by_path else env_options(env), options)
    left_out = SEARCHED if with_options(card, given).questions.of_corpus else SEARCHED | {"corpus"}
    kept: Any = {name: value for name, value in given.items() if name not in left_out}
    return load_task(card, **kept, retriever=NullRetriever())


def credit_of(recipe: Recipe, proposed: Sequence[Question] = (), run_code: bool = False) -> Credit:
    """Returns the credit of a recipe; its environment is loaded only if a term scores answers, and without a retriever.

    Verdicts of a model are not kept: terms that ask one are left out.

    Args:
        recipe: Recipe of the training.
        proposed: Questions that were proposed for it.
        run_code: Whether what the recipe names as code may be imported.

    Raises:
        UsageError: The recipe names code, and `run_code` is False.
    """

    @functools.cache
    def load() -> Task:
        with code_refused(REMEDY, unless=run_code):
            task = asked_task(recipe.env, recipe.env_options)
        return replace(task, by_id={**task.by_id, **{question.id: question for question in proposed}})

    with code_refused(REMEDY, unless=run_code):
        terms = recipe.credit.loaded()
        judge = recipe.judge.open({}) if getattr(recipe.judge, "in_process", False) else None
        if judge is None:
            terms = {name: term for name, term in terms.items() if not term.asks_judge}
        return Credit.of(terms, read_agent(recipe.agent)[1], load, judge)


def terms_of(episode: Episode, episodes: Sequence[Episode], credit: Credit) -> Terms:
    """Returns the rewards of an episode's calls by credit term; see `terms_by_episode`."""
    group = [other for other in episodes if other.group_uid == episode.group_uid]
    return terms_by_episode(group, credit)[[other.id for other in group].index(episode.id)]


def terms_by_episode(episodes: Sequence[Episode], credit: Credit) -> list[dict[str, list[float]]]:
    """Returns the rewards of each episode's calls by credit term, given within its group as in training.

    Where the retriever failed, training gives no reward, and there is no term.
    """
    found: list[dict[str, list[float]]] = [{} for _ in episodes]
    for places in groups_of(episodes):
        for name, rows in credit.parts([episodes[place] for place in places]).items():
            for place, row in zip(places, rows, strict=True):
                found[place][name] = row
    return found
