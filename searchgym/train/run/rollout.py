"""Episodes for the training loop, run by the episode engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.retrieval.wrappers.wrapper import at_step
from searchgym.envs.task import Task
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.train.recipe.recipe import Recipe


class EngineRollout:
    """`Rollout` on the episode engine; one call at a time.

    Args:
        recipe: Its seed, concurrency and sampling.
        agent: The workflow and its roles.
        models: The model behind each role.
        task: Environment of training.
        validation: Environment of greedy rollouts.
        canonical: One step's episodes depend on (recipe, weights, step), to the bit; see `Engine`.
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
        """Returns `attempts` episodes per question, in the order of the questions and attempts."""
        episodes: list[Episode] = []
        if self.canonical:
            for model in self.models.values():
                model.sampler.forget()  # of validation, which a run that is resumed after it has not seen
        engine = self._engine(step, greedy)
        at_step(engine.task.retriever, None if greedy else step, self.recipe.steps)
        asyncio.run(self._run(engine.run(questions, episodes.append, attempts, group=str(step))))
        place = {question.id: number for number, question in enumerate(questions)}
        return sorted(episodes, key=lambda episode: (place[episode.question_id], episode.attempt))

    def give_up(self) -> None:
        """Ends a call that another thread makes: it raises a `CancelledError` there."""
        if (under_way := self._under_way) is not None:
            loop, task = under_way
            with contextlib.suppress(RuntimeError):  # it has just ended
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
        """Returns an engine for a step."""
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
