"""Explanation of an episode's rewards: role, model key, tokens, reward terms and advantage of each call."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from searchgym.errors import DataError
from searchgym.eval.rows import CallRow, call_rows
from searchgym.eval.viewing.rewards import terms_of
from searchgym.eval.viewing.saved import SavedRun
from searchgym.records import Episode
from searchgym.train.loop.folder import Advantages
from searchgym.train.recipe.recipe import Recipe

NAMING: Final = ("agent", "env", "env_options", "credit")
"""Options of a recipe that determine rewards and may name code."""


def explain_run(
    run: Path, episode_id: str | None = None, recipe: Recipe | None = None
) -> tuple[Episode, list[CallRow]]:
    """Explains an episode saved by a training run, with the run's recipe and recorded advantages.

    Args:
        run: Folder of the run.
        episode_id: Id of the episode. Default: the first episode with a nonzero advantage.
        recipe: The user's recipe. Code that the run's recipe names is imported only if this recipe names the same.

    Raises:
        UnknownNameError: The run has no such episode.
        DataMissingError: The run wrote no episodes.
        UsageError: The run names code that `recipe` does not.
    """
    saved = SavedRun.read(run)
    if recipe is not None and saved.recipe is not None:
        saved.run_code = all(getattr(saved.recipe, name) == getattr(recipe, name) for name in NAMING)
    trained = saved.trained_keys()
    chosen = _with_signal(saved.episodes, saved.advantages) if episode_id is None else saved.find(episode_id)
    return chosen, call_rows(chosen, saved.terms(chosen), saved.advantages, trained)


def explain_new(recipe: Recipe) -> tuple[Episode, list[CallRow]]:
    """Samples a small step with a recipe's initial models and explains one of its episodes."""
    from searchgym.train.loop.assembly import assemble  # loads torch, which a saved run does not need
    from searchgym.train.loop.collect import Collector, TrainingData

    small = replace(
        recipe,
        rollout=replace(
            recipe.rollout, questions=min(recipe.rollout.questions, 4), staleness=0, partial=0, starts=None, tree=None
        ),
    )
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
    return chosen, call_rows(chosen, terms_of(chosen, draw.episodes, parts.credit), advantages, parts.trained)


def _with_signal(episodes: Mapping[str, Episode], advantages: Advantages) -> Episode:
    """Returns the first episode with a nonzero advantage, or the first one if none has.

    Raises:
        DataError: There is no episode.
    """
    if not episodes:
        raise DataError("there is no episode to explain")
    with_signal = (call.rpartition("/")[0] for call, values in advantages.items() if np.any(values))
    return episodes[next(with_signal, next(iter(episodes)))]
