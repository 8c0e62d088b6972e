"""The episode engine: runs a workflow over many questions at once, without lock-step."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable

import numpy as np

from searchgym import protocol
from searchgym.agents.base import Agent, Observation
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.task import Task
from searchgym.errors import EpisodeError, RetrieverError, UsageError
from searchgym.records import Action, Episode, Question
from searchgym.rollout.batcher import Queries, retrieval_batcher


class Engine:
    """Runs episodes of one task.

    Args:
        task: The environment.
        agent: The workflow; one object for all episodes.
        agent_name: Recorded in the episodes.
        concurrency: Episodes under way at once.
        seed: Seed of the run; with the question id and the attempt it seeds each episode's generator.
    """

    def __init__(self, task: Task, agent: Agent, agent_name: str, *, concurrency: int = 64, seed: int = 0) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        if seed < 0:
            raise UsageError(f"seed must not be negative, got {seed}")
        self.task, self.agent, self.agent_name = task, agent, agent_name
        self.concurrency, self.seed = concurrency, seed
        self.retrieval = retrieval_batcher(task.retriever, task.rules.top_k, task.rules.deadline)

    async def run(self, questions: Iterable[Question], done: Callable[[Episode], None]) -> None:
        """Runs one episode per question.

        Args:
            questions: In the order in which they start.
            done: Called with each episode when it ends, in the order of their ends.

        Raises:
            SearchGymError: What a workflow, the reward or `done` raised; episodes already given to `done` are complete.
        """
        todo = iter(questions)

        async def worker() -> None:
            for question in todo:
                done(await self.episode(question))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.concurrency):
                    group.create_task(worker())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def episode(self, question: Question, attempt: int = 0) -> Episode:
        """Runs one episode to its end.

        Raises:
            RewardError: See `Task.score`.
            UsageError: The workflow cannot run on this question.
        """
        io = _EpisodeIO(self, question, attempt)
        try:
            await self.agent.run(question, io)
        except EpisodeError:
            if not io.state.done:
                raise
        return self._record(io.state, io.words, attempt)

    def _record(self, state: State, words: int, attempt: int) -> Episode:
        """Scores a state and returns it as an episode."""
        reward, scores = self.task.score(state)
        return Episode(
            id=f"{state.question.id}#{attempt}",
            question_id=state.question.id,
            agent=self.agent_name,
            env=self.task.card.id,
            attempt=attempt,
            seed=self.seed,
            searches=list(state.searches),
            turns=state.turn,
            invalid=state.invalid,
            observation_words=words,
            answer=state.answer,
            stop_reason=state.stop_reason,
            reward=reward,
            scores=scores,
            error=state.error,
        )


class _EpisodeIO:
    """`EpisodeIO` on the environment core and the batcher."""

    def __init__(self, engine: Engine, question: Question, attempt: int) -> None:
        self._engine, self._attempt = engine, attempt
        self._rng: np.random.Generator | None = None
        self._busy = False
        self.state = State(question)
        self.words = 0

    @property
    def protocol(self) -> protocol.Protocol:
        return self._engine.task.rules.protocol

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            question = zlib.crc32(self.state.question.id.encode("utf-8", "surrogatepass"))
            self._rng = np.random.default_rng([self._engine.seed, question, self._attempt])
        return self._rng

    @property
    def turns_left(self) -> int:
        return 0 if self.state.done else self._engine.task.rules.max_turns - self.state.turn

    async def step(self, action: Action) -> Observation:
        if self._busy:  # else several searches at once would cost one turn
            raise EpisodeError("one action at a time: await the last step before the next")
        rules = self._engine.task.rules
        state, queries = begin(self.state, action, rules)
        self._busy, text = True, ""
        try:
            asked = Queries(state.question.id, queries)
            hits = await self._engine.retrieval.ask(asked) if queries else []
        except RetrieverError as error:
            self.state = fail(state, str(error))
            hits = []
        else:
            self.state, text = finish(state, hits, rules)
            self.words += protocol.count_words(text)
        finally:
            self._busy = False
        return Observation(text, tuple(hit for own in hits for hit in own), self.state.done, self.turns_left)
