"""Rollouts whose long episodes run on beside later steps, so that no step waits for its longest episode.

Groups of several steps run at once; a step gets the first ones to end, in whole groups. Weights change between the
calls of a running episode, and each call keeps its version. Nothing is cut or thrown away: a group that takes long
counts for a later step. Source of the idea: partial rollouts of AReaL (arXiv 2505.24298, section 4.1). Deviations:
weights change between calls, not within one; whole groups count, so that advantages compare attempts of one question.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import at_step
from searchgym.rollout.engine import Engine
from searchgym.rollout.replay.journal import Page
from searchgym.train.loop.rollout import EngineRollout, reused_line

CLOSE_SECONDS: Final = 5.0
"""Seconds to wait for cancelled episodes to end."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Attempts at a question, some of which may still run."""

    step: int
    """0-based step that the question was drawn for."""
    number: int
    """Position of the question among those of its step."""
    question: Question
    episodes: concurrent.futures.Future[list[Episode]]
    """The attempts, once all have ended."""


class PartialRollout(EngineRollout):
    """A rollout whose groups run in one event loop, in a thread that outlasts a step; parameters as `EngineRollout`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="searchgym-rollout", daemon=True)
        self._thread.start()
        at_once = max(1, self.recipe.rollout.concurrency // self.recipe.rollout.attempts)
        self._slots = asyncio.Semaphore(at_once)
        self._news = threading.Condition()
        self._groups: list[Group] = []
        self._ended: list[Group] = []
        self._page: Page | None = None

    def submit(self, questions: Sequence[Question], attempts: int, step: int) -> None:
        """Starts the groups of a step, which begin when earlier ones have ended.

        Args:
            questions: Questions of the step.
            attempts: Episodes per question.
            step: 0-based step; with the recipe's seed it determines all random numbers.
        """
        engine = self._engine(step, greedy=False)
        self._write_to(step)
        for retriever in (engine.task.retriever, *engine.task.retrievers.values()):
            at_step(retriever, step, self.recipe.steps)
        for number, question in enumerate(questions):
            run = self._group(engine, question, attempts, step)
            group = Group(step, number, question, asyncio.run_coroutine_threadsafe(run, self._loop))
            self._groups.append(group)
            group.episodes.add_done_callback(functools.partial(self._end, group))

    def completed(self, count: int, overdue: int) -> list[Group]:
        """Waits for whole groups and returns them, in the order of their questions.

        Args:
            count: Number of groups; fewer if fewer were submitted.
            overdue: 0-based step; groups of this step and earlier ones are waited for and returned first.

        Raises:
            BaseException: What an episode raised, or a `CancelledError` after `give_up`.
        """
        due = [group for group in self._groups if group.step <= overdue]
        least = min(count, len(self._groups))

        def ready() -> bool:
            failed = any(group.episodes.cancelled() or group.episodes.exception() for group in self._ended)
            return failed or (len(self._ended) >= least and all(group in self._ended for group in due))

        with self._news:
            self._news.wait_for(ready)
            for group in self._ended:
                group.episodes.result()  # raises what an episode raised
            others = [group for group in self._ended if group not in due]
            chosen = [*due, *others][: max(least, len(due))]
            self._groups = [group for group in self._groups if group not in chosen]
            self._ended = [group for group in self._ended if group not in chosen]
        return sorted(chosen, key=lambda group: (group.step, group.number))

    def pending(self) -> list[list[int | str]]:
        """Returns the groups that were not returned yet as plain JSON: step and question id."""
        return [[group.step, group.question.id] for group in self._groups]

    def restore(self, pending: Sequence[Sequence[Any]], attempts: int) -> None:
        """Starts the groups again that `pending` returned; what is in the journal is not sampled again."""
        by_step: dict[int, list[Question]] = {}
        for step, question_id in pending:
            by_step.setdefault(int(step), []).append(self.task.find(str(question_id)))
        for step, questions in by_step.items():
            self.submit(questions, attempts, step)

    async def _group(self, engine: Engine, question: Question, attempts: int, step: int) -> list[Episode]:
        """Runs the attempts at a question, ordered by attempt."""
        episodes: list[Episode] = []
        async with self._slots:
            await engine.run_attempts([(question, n) for n in range(attempts)], episodes.append, group=str(step))
        return sorted(episodes, key=lambda episode: episode.attempt)

    def _write_to(self, step: int) -> None:
        """Writes the responses from now on to the journal's file of a step."""
        if self.journal is None or not self.journal.started:
            return
        if self._page is not None:
            self._page.roll(self.journal.path_of(step))
            return
        self._page = self.journal.open_all(step)
        for model in self.models.values():
            model.batcher.memory = self._page.of(model.key)

    def _end(self, group: Group, _: object) -> None:
        with self._news:
            self._ended.append(group)
            self._news.notify_all()

    @override
    def _wait(self, episodes: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(episodes, self._loop).result()

    @override
    @contextlib.contextmanager
    def _journaled(self, step: int, greedy: bool) -> Iterator[None]:
        yield  # the journal stays open

    @override
    def give_up(self) -> None:
        for group in self._groups:
            group.episodes.cancel()

    @override
    def close(self) -> None:
        self.give_up()
        with contextlib.suppress(concurrent.futures.TimeoutError):  # a call in a thread goes on until the process ends
            asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=CLOSE_SECONDS)
        if self._page is not None:
            sys.stderr.write(reused_line(self._page.close(False), "all steps"))


async def _end_all() -> None:
    """Cancels all other tasks of the event loop, and waits for their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
