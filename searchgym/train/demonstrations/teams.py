"""Demonstrations of teams: an oracle replies in every role, and the real workflows run on its replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import Agent, EpisodeIO, LoadedAgent, Reply, load_agent
from searchgym.agents.oracle_roles import OracleRoles
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled, SampleRequest
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.play import MODEL_KEY, turn_ids

TEAMS: Final = ("m-ask", "m-ask-no-knowledge", "jade", "rag", "ircot")
"""Shipped agents whose roles the oracle speaks for."""


class QueuedSampler:
    """A sampler that returns replies queued for each prompt, first in, first out."""

    max_context, version = 2**31 - 1, 0

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[npt.NDArray[np.int32]]] = {}

    def put(self, prompt: npt.NDArray[np.int32], ids: npt.NDArray[np.int32]) -> None:
        """Queues a reply for a prompt.

        Args:
            prompt: Token ids of the prompt.
            ids: Token ids of the reply.
        """
        self._queues.setdefault(prompt.tobytes(), deque()).append(ids)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the next queued reply of each request's prompt."""
        replies = [self._queues[request.ids.tobytes()].popleft() for request in requests]
        return [Sampled(ids, np.zeros(len(ids), np.float32), "eos") for ids in replies]

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Always raises `UsageError`: a scripted sampler has no weights."""
        raise UsageError("a scripted sampler has no weights")

    def forget(self) -> None:
        """Does nothing: a reply depends on its own prompt alone."""

    def close(self) -> None:
        """Does nothing: there are no resources to free."""


class _Told:
    """A workflow whose roles say what each question's oracle tells them."""

    def __init__(
        self, agent: LoadedAgent, oracles: Mapping[str, OracleRoles], sampler: QueuedSampler, form: TokenFormat
    ) -> None:
        self._agent, self._oracles, self._sampler, self._form = agent, oracles, sampler, form

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        own: Any = _ToldIO(io, self, self._oracles[question.id])
        await self._agent.workflow.run(question, own)

    def tell(self, oracle: OracleRoles, role: str, fields: Mapping[str, str]) -> None:
        """Puts the oracle's reply behind the prompt that a role is about to get."""
        parts = self._agent.roles[role].parts(fields, self._form.protocol.instructions())
        self._sampler.put(self._form.prompt_ids(parts), turn_ids(oracle.reply(role, fields), self._form))


class _ToldIO:
    """`EpisodeIO` of such an episode."""

    def __init__(self, io: EpisodeIO, told: _Told, oracle: OracleRoles) -> None:
        self._io, self._told, self._oracle = io, told, oracle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    async def generate(self, role: str, **fields: str) -> Reply:
        self._told.tell(self._oracle, role, fields)
        return await self._io.generate(role, **fields)


def play_team(name: str, task: Task, oracles: Mapping[str, OracleRoles], form: TokenFormat) -> list[Episode]:
    """Runs a team whose every role is an oracle.

    Args:
        name: One of `TEAMS`.
        task: Task that holds the questions.
        oracles: Oracles by question id.
        form: Token format of the model that will learn from the episodes.

    Returns:
        One episode per oracle, in their order.
    """
    agent, sampler = load_agent(name), QueuedSampler()
    workflow: Agent = _Told(agent, oracles, sampler, form)
    model = Model.over(MODEL_KEY, sampler, form)
    engine = Engine(task, replace(agent, workflow=workflow), dict.fromkeys(agent.roles, model))
    episodes: dict[str, Episode] = {}
    questions = [task.find(question_id) for question_id in oracles]
    asyncio.run(engine.run(questions, lambda episode: episodes.update({episode.question_id: episode})))
    return [episodes[question_id] for question_id in oracles]
