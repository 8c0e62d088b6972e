"""The episode engine: runs an agent's workflow on many questions concurrently and independently."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from searchgym.agents.base import LoadedAgent, Observation, Reply, Reviser
from searchgym.agents.roles import Role
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.reward import score_episode
from searchgym.envs.task import Task
from searchgym.errors import EpisodeError, ReplayError, RetrieverError, UsageError
from searchgym.records import SIMULATED, Action, Call, Context, Episode, Hit, Passage, Question, StopReason
from searchgym.rollout.batcher import Batcher, Queries, Turnstile, retrieval_batcher
from searchgym.rollout.chat import TokenChat
from searchgym.rollout.models import Model
from searchgym.rollout.replay.prefix import Start
from searchgym.rollout.tokens import ContextText
from searchgym.text import count_words
from searchgym.threads import contained

REVISION: Final = 1
"""Number that seeds the calls which decide on a revision, besides the episode's numbers."""


class Engine:
    """Runs episodes of one task with one agent, many concurrently.

    Args:
        task: Environment with its questions, retriever and reward.
        agent: Workflow and roles of the agent; one object for all episodes.
        models: Model of each of the agent's roles, by role name.
        concurrency: Maximum number of concurrent episodes.
        seed: Seed of the run (training derives one per step); with the question id and the attempt it seeds each
            episode's generator and samples.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Probability mass of nucleus sampling, in (0, 1].
        training: True if the episodes will be trained on; see `EpisodeIO.training`.
        canonical: If True, batches depend only on the episodes (see `Turnstile`): runs are bit-identical, but episodes
            wait for each other. For training and tests; greedy evaluation does not need it.

    Raises:
        UsageError: A role has no model, or a model is given for a role that the agent does not have.
    """

    def __init__(
        self,
        task: Task,
        agent: LoadedAgent,
        models: Mapping[str, Model] | None = None,
        *,
        concurrency: int = 64,
        seed: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        training: bool = False,
        canonical: bool = False,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        if seed < 0:
            raise UsageError(f"seed must not be negative, got {seed}")
        models = models or {}
        if missing := sorted(agent.roles.keys() - models.keys()):
            raise UsageError(f"agent {agent.name}: no model for role {', '.join(missing)} (--model [ROLE=]PATH)")
        for name, role in agent.roles.items():
            if role.max_thought_tokens is not None and not models[name].format.continues:
                raise UsageError(
                    f"role {name}: {models[name].key} does not support max_thought_tokens: a chat server cannot "
                    "continue a response; leave it out, or load the model here"
                )
        if unused := sorted(models.keys() - agent.roles.keys()):
            raise UsageError(f"agent {agent.name} has no role {', '.join(unused)} that uses a model")
        self.task, self.agent, self.models = task, agent, models
        self.concurrency, self.seed = concurrency, seed
        self.temperature, self.top_p, self.training = temperature, top_p, training
        rules = task.rules
        self.retrieval = retrieval_batcher(task.retriever, rules.top_k, rules.deadline)
        self.sources = {
            name: retrieval_batcher(retriever, rules.top_k, rules.deadline)
            for name, retriever in task.retrievers.items()
        }
        self.canonical = canonical
        self._turnstile = Turnstile()

    async def run(
        self,
        questions: Iterable[Question],
        done: Callable[[Episode], None],
        attempts: int = 1,
        group: str | None = None,
    ) -> None:
        """Runs `attempts` episodes per question.

        Args:
            questions: Questions, in the order in which their episodes start.
            done: Called with each episode as it ends, so not in the order of the questions.
            attempts: Number of episodes per question, which form a group.
            group: Prefix of each episode's `group_uid`; with None there is no `group_uid`.

        Raises:
            SearchGymError: An error of a workflow, the reward or `done`; episodes already passed to `done` are
                complete.
        """
        await self.run_attempts(((question, n) for question in questions for n in range(attempts)), done, group)

    async def run_attempts(
        self, todo: Iterable[tuple[Question, int] | Start], done: Callable[[Episode], None], group: str | None = None
    ) -> None:
        """Runs one episode per (question, 0-based attempt) pair or `Start`; otherwise as `run`.

        Continuations of the same turns of an episode form a group.
        """
        self._turnstile = Turnstile()  # engines may share models one after the other
        models = [self.models[role] for role in sorted(self.models)]  # roles may share one
        batchers: list[Batcher[Any, Any]] = [self.retrieval, *self.sources.values()]
        for batcher in [*batchers, *(model.batcher for model in models)]:
            batcher.turnstile = None
            if self.canonical:
                self._turnstile.add(batcher)
        left = iter(todo)  # one for all workers

        async def worker() -> None:
            for item in left:
                if isinstance(item, Start):
                    episode = await self.replay(item.episode, item.turns, item.branch)
                    same = f"{item.episode.id}~{item.turns}"
                else:
                    episode, same = await self.episode(*item), item[0].id
                if group is not None:
                    episode.group_uid = f"{group}/{same}"
                    episode.id += f"@{group}"  # the same question and attempt come again in a later epoch
                done(episode)

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.concurrency):
                    workers.create_task(worker())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def episode(self, question: Question, attempt: int = 0) -> Episode:
        """Runs one episode to its end and scores it.

        Args:
            question: Question to answer.
            attempt: 0-based number of the attempt at the question.

        Raises:
            RewardError: The reward function raised, or returned something other than a finite number.
            UsageError: The workflow cannot run on this question.
        """
        played = await self._played(_EpisodeIO(self, question, attempt))
        workflow = self.agent.workflow
        return await self._revised(question, played, workflow) if isinstance(workflow, Reviser) else played

    async def _revised(self, question: Question, first: Episode, reviser: Reviser) -> Episode:
        """Returns an episode with the calls that decide on its revision; revised, if they name a flawed turn."""
        io, turn = _EpisodeIO(self, question, first.attempt, salt=(REVISION,)), 0
        with self._turnstile.episode(), contained(), contextlib.suppress(EpisodeError):  # its context may be full
            turn = await reviser.flawed_turn(question, first, io)  # pyright: ignore[reportArgumentType]
        episode = first
        if turn and io.probability() >= reviser.least:
            start = Start(first, turn - 1, 0)
            episode = await self._played(_EpisodeIO(self, question, first.attempt, start))
            episode.id, episode.replayed, episode.replays = first.id, 0, None
            dropped = first.calls[start.calls :]
            episode.notes["discarded_tokens"] = float(sum(call.end - call.start for call in dropped))
        if io.calls:
            episode.notes |= io.notes | {"flawed_turn": float(turn), "revised": float(episode is not first)}
            episode.append(io.calls, [chat.read() for chat in io.chats])
        return episode

    async def replay(self, episode: Episode, turns: int, branch: int | None = None) -> Episode:
        """Runs an episode whose first turns repeat those of a recorded one, and scores it.

        The workflow starts anew; its calls of these turns get the recorded tokens and log-probs, searches are made
        again and must return the same pages. The hits of a retriever that is not in this process are those of the
        record. Noise that depends on the step of a training is that of the step which `at_step` set.

        Args:
            episode: The recorded episode, with contexts.
            turns: Number of turns to repeat; 0 repeats nothing, `Episode.turns` everything.
            branch: Number of the continuation, at least 0, which seeds it. Default: the recorded seeds, so that the
                same model continues as in the record.

        Returns:
            The new episode. `Episode.replayed` is the number of repeated calls.

        Raises:
            ReplayError: Something has changed: agent, environment, prompt, tokenizer, page, or the record itself.
            UsageError: The episode has fewer turns or no tokens, or a retriever elsewhere cannot be replayed because
                the environment changes its hits.
        """
        start = Start(episode, turns, branch)
        for what, recorded, now in (("agent", episode.agent, self.agent.name), ("env", episode.env, self.task.card.id)):
            if recorded != now:
                raise ReplayError(f"episode {episode.id}: its {what} is {recorded}, this engine's is {now}")
        return await self._played(_EpisodeIO(self, self.task.find(episode.question_id), episode.attempt, start))

    async def _played(self, io: _EpisodeIO) -> Episode:
        """Runs an episode to its end and scores it; see `episode`."""
        question = io.state.question
        try:
            with self._turnstile.episode(), contained():
                await self.agent.workflow.run(question, io)  # pyright: ignore[reportArgumentType]  # rng is made when asked
        except EpisodeError:
            if not io.state.done:
                raise
        except Exception as error:
            error.add_note(f"in agent {self.agent.name}, question {question.id!r}")
            raise
        contexts = [chat.read() for chat in io.chats]
        reward, scores = score_episode(self.task.reward, io.state)
        state = io.state
        return Episode(
            id=io.name,
            question_id=question.id,
            agent=self.agent.name,
            env=self.task.card.id,
            attempt=io.attempt,
            seed=io.entropy[0],
            contexts=contexts,
            calls=io.calls,
            searches=list(state.searches),
            opens=list(state.opens),
            cites=list(state.cites),
            turns=state.turn,
            invalid=state.invalid,
            observation_words=io.words,
            answer=state.answer,
            stop_reason=state.stop_reason,
            reward=reward,
            scores=scores,
            error=state.error,
            notes=io.notes,
            replayed=0 if io.start is None else io.start.calls,
            replays=None if io.start is None else io.start.episode.id,
        )


class _EpisodeIO:
    """Implementation of `EpisodeIO` on the environment core and the batchers."""

    def __init__(
        self,
        engine: Engine,
        question: Question,
        attempt: int,
        start: Start | None = None,
        salt: tuple[int, ...] = (),
    ) -> None:
        self.engine, self.attempt, self.start = engine, attempt, start
        # surrogatepass: ids come from files, which may hold lone surrogates
        self._entropy = (engine.seed, zlib.crc32(question.id.encode("utf-8", "surrogatepass")), attempt, *salt)
        self._busy = False
        self.protocol, self.training = engine.task.rules.protocol, engine.training
        self.sort_key = (question.id, attempt)
        self.name = f"{question.id}#{attempt}" if start is None else start.name
        self.state = State(question)
        self.words = 0
        self.chats: list[TokenChat] = []
        self.calls: list[Call] = []
        self.notes: dict[str, float] = {}

    @property
    def entropy(self) -> tuple[int, ...]:
        return self._entropy if self.start is None else self.start.entropy(self.state.turn >= self.start.turns)

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.entropy)

    @property
    def turns_left(self) -> int:
        return 0 if self.state.done else self.engine.task.rules.max_turns - self.state.turn

    def note(self, name: str, value: float) -> None:
        self.notes[name] = float(value)

    def end(self, reason: StopReason, why: str) -> EpisodeError:
        """Ends the episode and returns the exception to raise."""
        self.state = fail(self.state, why, reason)
        return EpisodeError(why)

    def probability(self) -> float:
        """Returns the probability with which the model wrote its last response; 1 if there is none."""
        logps = [span.logp for chat in self.chats for span in chat.read().spans if span.logp is not None]
        return float(np.exp(logps[-1].astype(np.float64).sum())) if logps else 1.0

    def role(self, name: str) -> Role:
        """Returns the agent's role of that name, or raises a UsageError."""
        roles = self.engine.agent.roles
        if name not in roles:
            raise UsageError(f"agent {self.engine.agent.name} has no role {name!r}: its card names {sorted(roles)}")
        return roles[name]

    def open(self, role: str, **fields: str) -> TokenChat:
        agent_role, model = self.role(role), self.engine.models[role]
        prompt = ContextText(agent_role.parts(fields, self.protocol.instructions()), None)
        return TokenChat(self, agent_role, model, Context(None, 0), prompt)

    async def generate(self, role: str, **fields: str) -> Reply:
        return await self.open(role, **fields).generate()

    async def step(self, action: Action, pages: Sequence[str] | None = None) -> Observation:
        if self._busy:  # otherwise several searches at once would cost only one turn
            raise EpisodeError("one action at a time: await the last step before the next")
        rules = self.engine.task.rules
        state, queries = begin(self.state, action, rules)
        self._busy, text = True, ""
        searched, opened = len(state.searches), len(state.opens)
        try:
            batcher = self.engine.sources[state.source] if queries and state.source else self.engine.retrieval
            if queries and pages is not None:
                start = f"{SIMULATED}{self.engine.agent.name}/{self.state.turn + 1}"  # the agent wrote them itself
                written = enumerate(zip(queries, pages, strict=True))
                hits = [[Hit(Passage(f"{start}-{n}", "", page), 1.0)] for n, (_, page) in written]
            elif self.start is not None and state.turn <= self.start.turns and not self._in_process(state.source):
                hits = self.start.hits(state.turn) if queries else []
            else:
                hits = await batcher.ask(Queries(state.question.id, queries), self.sort_key) if queries else []
        except RetrieverError as error:
            self.state = fail(state, str(error))
        else:
            self.state, text = finish(state, hits, rules)
            self.words += count_words(text)
        finally:
            self._busy = False
        if self.start is not None and self.state.turn <= self.start.turns and not self.state.error:
            self._check_turn(self.start)
        # Not `hits`: where pages can be opened, searches show snippets of them.
        seen = tuple(hit for search in self.state.searches[searched:] for hit in search.hits)
        looks = self.state.opens[opened:]
        return Observation(text, seen, self.state.done, self.turns_left, looks[0] if looks else None)

    def _in_process(self, source: str) -> bool:
        """Checks whether a source searches in this process, so that its hits can be searched for again."""
        retriever, rules = self.engine.task.source(source), self.engine.task.rules
        if getattr(retriever, "in_process", False):
            return True
        if rules.faults or rules.pages is not None:
            raise UsageError(
                f"{type(retriever).__name__} does not search in this process, and the record has its hits only after "
                f"{'faults' if rules.faults else 'they were cut to snippets'}: such episodes cannot be replayed"
            )
        return False

    def _check_turn(self, start: Start) -> None:
        """Compares the last turn with the recorded one; after the last recorded one, changes the random numbers."""
        state = self.state
        start.check_turn(state.turn, state.searches, state.opens, state.cites)
        if state.turn == start.turns and start.branch is not None and "rng" in self.__dict__:
            self.rng.bit_generator.state = np.random.default_rng(start.entropy(True)).bit_generator.state
