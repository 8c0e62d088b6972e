"""Connects the training loop to the samplers and to the engine that runs episodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import Task
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import at_step
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.train.algorithms.samples import Sample
from searchgym.train.loop.draw import Rollout
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.recipe import Recipe


def _nothing(*_: object) -> None:
    """Does nothing: the hook of a sampler that needs no such call."""


@dataclass(frozen=True, slots=True)
class SamplerHooks:
    """Functions by which the training loop runs a sampler and keeps it up to date."""

    rollout: Rollout | None = None
    """Makes episodes. Needed unless ``method: supervised`` runs without validation."""
    publish: Callable[[int], None] = _nothing
    """Copies the learner's weights into the samplers of the trained keys, each of which holds its own copy.

    Called with the version of the weights, before the first rollout and after each update."""
    probe: Callable[[Sequence[Sample]], Row] | None = None
    """Checks that the sampler has the new weights. Called with a step's samples once the weights are published."""
    rest: Callable[[], None] | None = None
    """Makes a sampler on the learner's GPU give its memory back until `publish`. Called before each update."""
    give_up: Callable[[], None] = _nothing
    """Ends a rollout that another thread makes and that is no longer needed (``rollout.staleness``)."""


class EngineRollout:
    """A `Rollout` on the episode engine; it serves one call at a time.

    Args:
        recipe: Gives the seed, the concurrency and the sampling options.
        agent: The workflow and its roles.
        models: The model behind each role.
        task: Environment of training.
        validation: Environment of greedy rollouts.
        canonical: Makes a step's episodes depend on (recipe, weights, step) alone, to the bit; see `Engine`.
    """

    def __init__(
        self,
        recipe: Recipe,
        agent: LoadedAgent,
        models: Mapping[str, Model],
        task: Task,
        validation: Task,
        *,
        canonical: bool = True,
    ) -> None:
        self.recipe, self.agent, self.models = recipe, agent, models
        self.task, self.validation, self.canonical = task, validation, canonical
        self._under_way: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question, ordered by question and attempt."""
        episodes: list[Episode] = []
        if self.canonical:
            for model in self.models.values():
                model.sampler.forget()  # validation: a run resumed after it has no such cache
        engine = self._engine(step, greedy)
        for retriever in (engine.task.retriever, *engine.task.retrievers.values()):
            at_step(retriever, None if greedy else step, self.recipe.steps)
        asyncio.run(self._run(engine.run(questions, episodes.append, attempts, group=str(step))))
        place = {question.id: number for number, question in enumerate(questions)}
        return sorted(episodes, key=lambda episode: (place[episode.question_id], episode.attempt))

    def give_up(self) -> None:
        """Ends a call that another thread makes, which raises a `CancelledError` in that thread."""
        if (under_way := self._under_way) is not None:
            loop, task = under_way
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(task.cancel)

    async def _run(self, episodes: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way = (asyncio.get_running_loop(), task)
        try:
            await episodes
        finally:
            self._under_way = None

    def _engine(self, step: int, greedy: bool) -> Engine:
        """Returns the episode engine of a step, seeded for it."""
        options = self.recipe.rollout
        return Engine(
            self.validation if greedy else self.task,
            self.agent,
            self.models,
            concurrency=options.concurrency,
            seed=int(np.random.SeedSequence((self.recipe.seed, step, greedy)).generate_state(1)[0]),
            temperature=0.0 if greedy else options.temperature,
            top_p=1.0 if greedy else options.top_p,
            training=not greedy,
            canonical=self.canonical,
        )
