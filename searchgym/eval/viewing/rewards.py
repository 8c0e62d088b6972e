"""Rewards of a saved run's calls, computed from its recipe's credit terms and environment, without a retriever."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from searchgym.agents.base import read_agent
from searchgym.envs.cards import EnvCard
from searchgym.envs.options import UNSEARCHED, merge_options, with_options
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
"""End of the error if a run names code: what to do."""
SEARCHED: Final = frozenset({"retriever", "retrievers", "distractors", *UNSEARCHED})
"""Options of an environment that concern search."""


def searchless_task(env: str, options: Mapping[str, Any]) -> Task:
    """Returns the environment of a saved run with its questions and its reward, but without a retriever.

    Args:
        env: Id of the environment, or a path to its card, which is not registered, since it may come from a stranger.
        options: Options of the environment in the run.

    Raises:
        SearchGymError: See `load_task`.
    """
    by_path = env.endswith((".yaml", ".yml"))
    card = load_card(EnvCard, find_card("envs", env)) if by_path else find_env(env)
    values = merge_options(card, {} if by_path else env_options(env), options)
    left_out = SEARCHED if with_options(card, values).questions.of_corpus else SEARCHED | {"corpus"}
    remaining: Any = {name: value for name, value in values.items() if name not in left_out}
    return load_task(card, **remaining, **UNSEARCHED, retriever=NullRetriever())


def credit_of(recipe: Recipe, proposed: Sequence[Question] = (), run_code: bool = False) -> Credit:
    """Returns the credit of a recipe; the environment is loaded only if a term scores answers, without a retriever.

    Verdicts of a model as a judge are not stored: terms that need them are left out.

    Args:
        recipe: Recipe of the training.
        proposed: Questions that a proposer made in the training.
        run_code: Whether code that the recipe names may be imported.

    Raises:
        UsageError: The recipe names code, and `run_code` is False.
    """

    @functools.cache
    def load() -> Task:
        with code_refused(REMEDY, unless=run_code):
            task = searchless_task(recipe.env, recipe.env_options)
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
    """Returns one mapping per episode, from the name of each credit term to the rewards of the episode's model calls.

    As in training, the episodes of a group are rewarded together. An episode whose retriever failed has an empty
    mapping.
    """
    terms: list[dict[str, list[float]]] = [{} for _ in episodes]
    for group in groups_of(episodes):
        for name, rows in credit.parts([episodes[index] for index in group]).items():
            for index, row in zip(group, rows, strict=True):
                terms[index][name] = row
    return terms
