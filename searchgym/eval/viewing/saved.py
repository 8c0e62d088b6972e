"""Saved episodes of a run, with the rewards and advantages that training gave their calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import read_agent
from searchgym.corpora.questions import read_questions
from searchgym.envs.cards import EnvCard
from searchgym.envs.options import merge_options, with_options
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.named import code_refused
from searchgym.options.cards import find_card, load_card
from searchgym.records import Episode
from searchgym.retrieval.retriever import NullRetriever
from searchgym.rollout.folders import model_folder
from searchgym.rollout.storage import read_episodes
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.credit.credit import Credit, groups_of
from searchgym.train.loop.folder import ADVANTAGES, EPISODES, PROPOSED, RECIPE, read_advantages
from searchgym.train.recipe.keys import Key, keys_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe

Advantages = Mapping[str, npt.NDArray[np.float32]]
"""Call id to the advantages of its tokens; (1,) where all have the same."""
Terms = dict[str, list[float]]
"""Rewards of an episode's calls, by credit term."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Episodes of a training or of an evaluation, read from its folder."""

    path: Path
    """The file of the episodes."""
    recipe: Recipe | None
    """Recipe of the training; None for an evaluation."""
    episodes: dict[str, Episode]
    """Every episode by its id."""
    advantages: Advantages
    """Advantages by call id; empty for an evaluation."""
    run_code: bool = False
    """Whether what the recipe names as code is imported."""

    @classmethod
    def read(cls, path: Path, run_code: bool = False) -> SavedRun:
        """Reads a run folder, or its ``episodes.jsonl``.

        Args:
            path: The folder or file, which may be somebody else's.
            run_code: Whether what the run's recipe names as code may be imported.

        Raises:
            DataMissingError: There are no episodes.
        """
        path = path / EPISODES if path.is_dir() else path
        if not path.is_file():
            raise DataMissingError("no episodes: a run writes them in the steps that log.episodes_every says", path)
        record, advantages = path.with_name(RECIPE), path.with_name(ADVANTAGES)
        return cls(
            path,
            read_recipe(record) if record.is_file() else None,
            {episode.id: episode for episode in read_episodes(path)},
            read_advantages(advantages) if advantages.is_file() else {},
            run_code,
        )

    def find(self, episode_id: str) -> Episode:
        """Returns the episode with an id.

        Raises:
            UnknownNameError: The run has no such episode.
        """
        if episode_id not in self.episodes:
            raise UnknownNameError("episode", episode_id, self.episodes)
        return self.episodes[episode_id]

    def model_keys(self) -> list[Key]:
        """Returns the model keys of a training; none of an evaluation."""
        if self.recipe is None:
            return []
        agent, roles = read_agent(self.recipe.agent)
        return keys_of(self.recipe, roles, agent.name)

    def terms(self, episode: Episode) -> Terms:
        """Returns the rewards that training gave an episode's calls; those of an evaluation by the outcome alone."""
        if self.recipe is None:
            return {"outcome": outcome_rewards(episode)}
        credit = credit_of(self.recipe, self.path.with_name(PROPOSED), self.run_code)
        return terms_of(episode, list(self.episodes.values()), credit)

    def model_of(self, key: str) -> Path:
        """Returns the folder of the model behind a model key.

        Raises:
            UsageError: The run does not name it, or it is no longer there.
        """
        names = {own.name: own.recipe.model for own in self.model_keys()}
        try:
            return model_folder(names.get(key, key), ["*.json", "*.jinja", "*.model", "*.txt"])
        except DataMissingError as error:
            raise UsageError(
                f"the run does not tell where its model {key} is ({error}): give it with --model"
            ) from error


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


def credit_of(recipe: Recipe, proposed: Path | None = None, run_code: bool = False) -> Credit:
    """Returns the credit of a recipe; its environment is loaded only if a term scores answers, and without a retriever.

    Verdicts of a model are not kept: terms that ask one are left out.

    Args:
        recipe: Recipe of the training.
        proposed: File of the questions that were proposed for it, if it has one.
        run_code: Whether what the recipe names as code may be imported.

    Raises:
        UsageError: The recipe names code, and `run_code` is False.
    """

    @functools.cache
    def load() -> Task:
        with code_refused(REMEDY, unless=run_code):
            task = asked_task(recipe.env, recipe.env_options)
        if proposed is None or not proposed.is_file() or not proposed.stat().st_size:
            return task
        return replace(task, by_id={**task.by_id, **{q.id: q for q in read_questions(proposed)}})

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


def terms_by_episode(episodes: Sequence[Episode], credit: Credit) -> list[Terms]:
    """Returns the rewards of each episode's calls by credit term, given within its group as in training.

    Where the retriever failed, training gives no reward, and there is no term.
    """
    found: list[Terms] = [{} for _ in episodes]
    for places in groups_of(episodes):
        for name, rows in credit.parts([episodes[place] for place in places]).items():
            for place, row in zip(places, rows, strict=True):
                found[place][name] = row
    return found
