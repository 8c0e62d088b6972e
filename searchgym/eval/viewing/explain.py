"""Explanation of rewards: for each call its role, model key, tokens, reward terms and advantage."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from searchgym.errors import DataError
from searchgym.eval.viewing.saved import Advantages, SavedRun, Terms, terms_of
from searchgym.records import Episode
from searchgym.train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """One call of an episode with the terms of its reward."""

    role: str
    model_key: str
    turn: int
    legal: bool
    tokens: int
    """Number of tokens that the model wrote."""
    parts: dict[str, float]
    """Reward by credit term."""
    reward: float
    """Reward of the call: the sum over `parts`."""
    advantage: float | None
    """Mean advantage over the call's tokens; None if the call is not trained on: its model key is frozen, its sequence
    left the batch, or its step was not recorded."""
    text: str


NAMING: Final = ("agent", "env", "env_options", "credit")
"""Parts of a recipe that name what gives rewards."""


def explain_run(
    run: Path, episode_id: str | None = None, recipe: Recipe | None = None
) -> tuple[Episode, list[ExplainedCall]]:
    """Explains an episode saved by a training run, with the run's recipe and recorded advantages.

    Args:
        run: Folder of the run.
        episode_id: Episode to explain; by default the first with a nonzero advantage.
        recipe: The user's recipe: what the run's recipe names as code is imported only if this one names the same.

    Raises:
        UnknownNameError: The run has no such episode.
        DataMissingError: The run wrote no episodes.
        UsageError: The run names code that `recipe` does not.
    """
    saved = SavedRun.read(run)
    if recipe is not None and saved.recipe is not None:
        same = all(getattr(saved.recipe, name) == getattr(recipe, name) for name in NAMING)
        saved = replace(saved, run_code=same)
    trained = [key.name for key in saved.model_keys() if not key.frozen]
    chosen = _with_signal(saved.episodes, saved.advantages) if episode_id is None else saved.find(episode_id)
    return chosen, explained_calls(chosen, saved.terms(chosen), saved.advantages, trained)


def explain_new(recipe: Recipe) -> tuple[Episode, list[ExplainedCall]]:
    """Samples a small step with the recipe's initial models and explains one of its episodes."""
    from searchgym.train.loop.assembly import assemble  # loads torch, which a saved run does not need
    from searchgym.train.loop.collect import Collector, TrainingData

    small = replace(recipe, rollout=replace(recipe.rollout, questions=min(recipe.rollout.questions, 4), staleness=0))
    with tempfile.TemporaryDirectory(prefix="searchgym-") as folder:
        parts = assemble(small, Path(folder))
        with closing(parts):
            parts.publisher().publish(parts.learner.version)
            data = TrainingData(parts.task.questions, trained=parts.trained, credit=parts.credit)
            collector = Collector(parts.recipe, parts.learner, parts.rollout, data)
            draw = collector.prepared(collector.draw(0))
    advantages = {
        name: sample.advantage[call.start : call.end]
        for sample in draw.samples
        for call, name in zip(sample.calls, sample.call_ids, strict=True)
    }
    chosen = _with_signal({episode.id: episode for episode in draw.episodes}, advantages)
    return chosen, explained_calls(chosen, terms_of(chosen, draw.episodes, parts.credit), advantages, parts.trained)


def _with_signal(episodes: Mapping[str, Episode], advantages: Advantages) -> Episode:
    """Returns the first episode with a nonzero advantage, or the first one if none has.

    Raises:
        DataError: There is no episode.
    """
    if not episodes:
        raise DataError("there is no episode to explain")
    with_signal = (call.rpartition("/")[0] for call, own in advantages.items() if np.any(own))
    return episodes[next(with_signal, next(iter(episodes)))]


def explained_calls(
    episode: Episode, terms: Terms, advantages: Advantages, trained: Sequence[str]
) -> list[ExplainedCall]:
    """Returns the calls of an episode with their rewards and advantages.

    Args:
        episode: Finished episode.
        terms: Rewards of its calls by credit term.
        advantages: Advantages by call id.
        trained: Model keys that are trained; calls of others have no advantage.
    """
    found = []
    for index, call in enumerate(episode.calls):
        parts = {name: row[index] for name, row in terms.items()}
        own = advantages.get(f"{episode.id}/{index}") if call.model_key in trained else None
        found.append(
            ExplainedCall(
                role=call.role,
                model_key=call.model_key,
                turn=call.turn,
                legal=call.legal,
                tokens=call.end - call.start,
                parts=parts,
                reward=sum(parts.values()),
                advantage=None if own is None else float(np.mean(own)),
                text=call.text,
            )
        )
    return found
