"""Explanation of rewards: for each call its role, model key, tokens, reward terms and advantage."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import load_agent
from searchgym.errors import DataError, UnknownNameError
from searchgym.records import Episode
from searchgym.rollout.storage import read_episodes
from searchgym.train.algorithms.credit import Credit
from searchgym.train.recipe.keys import keys_of
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.assembly import assemble, load_tasks
from searchgym.train.run.draw import Drawer, TrainingData
from searchgym.train.run.folder import read_advantages

Advantages = Mapping[str, npt.NDArray[np.float32]]
"""Call id to the advantages of its tokens; (1,) where all have the same."""


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """One call of an episode with the terms of its reward."""

    role: str
    model_key: str
    turn: int
    legal: bool
    tokens: int
    """Number of trained tokens; 0 if the model key is frozen or the sequence was dropped from the batch."""
    parts: dict[str, float]
    """Reward by credit term."""
    reward: float
    """Reward of the call: the sum over `parts`."""
    advantage: float | None
    """Mean advantage over the call's tokens; None if the call is not trained."""
    text: str


def explain_run(run: Path, episode_id: str | None = None) -> tuple[Episode, list[ExplainedCall]]:
    """Explains an episode saved by a training run, with the run's recipe and recorded advantages.

    Args:
        run: Folder of the run.
        episode_id: Episode to explain; by default the first with a nonzero advantage.

    Raises:
        UnknownNameError: The run has no such episode.
        DataError: The run wrote no episodes.
    """
    path = run / "episodes.jsonl"
    if not path.is_file():
        raise DataError("no episodes: a run writes them in the steps that log.episodes_every says", path)
    episodes = {episode.id: episode for episode in read_episodes(path)}
    recipe = read_recipe(run / "recipe.yaml")
    agent = load_agent(recipe.agent)
    trained = [key.name for key in keys_of(recipe, agent.roles, agent.name) if not key.frozen]
    credit = Credit.of(recipe.credit, agent.roles, load_tasks(recipe)[0])
    return _explain(episodes, read_advantages(run / "episodes.advantages.jsonl"), credit, trained, episode_id)


def explain_new(recipe: Recipe) -> tuple[Episode, list[ExplainedCall]]:
    """Samples a small step with the recipe's initial models and explains one of its episodes."""
    small = replace(recipe, rollout=replace(recipe.rollout, questions=min(recipe.rollout.questions, 4), staleness=0))
    with tempfile.TemporaryDirectory(prefix="searchgym-") as folder:
        parts = assemble(small, Path(folder))
        with closing(parts):
            parts.publish(parts.learner.version)
            data = TrainingData(parts.task.questions, trained=parts.trained, credit=parts.credit)
            drawer = Drawer(small, parts.learner, parts.rollout, data)
            draw = drawer.prepared(drawer.draw(0))
    advantages = {
        name: sample.advantage[call.start : call.end]
        for sample in draw.samples
        for call, name in zip(sample.calls, sample.call_ids, strict=True)
    }
    return _explain({episode.id: episode for episode in draw.episodes}, advantages, parts.credit, parts.trained)


def _explain(
    episodes: Mapping[str, Episode],
    advantages: Advantages,
    credit: Credit,
    trained: Sequence[str],
    episode_id: str | None = None,
) -> tuple[Episode, list[ExplainedCall]]:
    if episode_id is not None and episode_id not in episodes:
        raise UnknownNameError("episode", episode_id, episodes)
    if not episodes:
        raise DataError("there is no episode to explain")
    with_signal = (call.rpartition("/")[0] for call, own in advantages.items() if np.any(own))
    chosen = episodes[episode_id or next(with_signal, next(iter(episodes)))]
    group = [episode for episode in episodes.values() if episode.group_uid == chosen.group_uid]
    rows = {name: found[group.index(chosen)] for name, found in credit.parts(group).items()}
    return chosen, _calls(chosen, rows, advantages, trained)


def _calls(
    episode: Episode, rows: Mapping[str, Sequence[float]], advantages: Advantages, trained: Sequence[str]
) -> list[ExplainedCall]:
    """Returns the calls of an episode."""
    found = []
    for index, call in enumerate(episode.calls):
        parts = {name: row[index] for name, row in rows.items()}
        own = advantages.get(f"{episode.id}/{index}") if call.model_key in trained else None
        found.append(
            ExplainedCall(
                role=call.role,
                model_key=call.model_key,
                turn=call.turn,
                legal=call.legal,
                tokens=0 if own is None else call.end - call.start,
                parts=parts,
                reward=sum(parts.values()),
                advantage=None if own is None else float(np.mean(own)),
                text=call.text,
            )
        )
    return found
