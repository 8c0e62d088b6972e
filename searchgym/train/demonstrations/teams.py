"""Demonstrations of teams: an oracle replies in every role, and the real workflows run on its replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import Agent, Chat, EpisodeIO, LoadedAgent, Reply, load_agent
from searchgym.envs.task import Task
from searchgym.records import Episode, Question
from searchgym.rollout.chat import TokenChat
from searchgym.rollout.sampler import Finish, Sampled, SampleRequest
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.play import WrittenSampler, response_after, run_written, text_ids, turn_ids

TEAMS: Final = ("m-ask", "m-ask-no-knowledge", "jade", "rag", "ircot")
"""Shipped agents whose roles the oracle can write for."""


class Speaker(Protocol):
    """Oracle of one episode, which writes the output of each role."""

    def reply(self, role: str, fields: Mapping[str, str]) -> str:
        """Returns a role's output for a prompt with these fields; in a conversation, its next turn."""
        ...


class QueuedSampler(WrittenSampler):
    """A sampler that returns replies queued for each episode, first in, first out."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Sampled]] = {}

    def put(self, episode: str, ids: npt.NDArray[np.int32], finish: Finish) -> None:
        """Queues a reply.

        Args:
            episode: Id of the episode that will request the reply.
            ids: Token ids of the reply.
            finish: Reason why the reply ends.
        """
        self._queues.setdefault(episode, deque()).append(Sampled(ids, np.zeros(len(ids), np.float32), finish))

    def reply(self, request: SampleRequest) -> Sampled:
        """Returns the next queued reply of the request's episode."""
        return self._queues[request.episode].popleft()


Tell = Callable[[str, Mapping[str, str], str], None]
"""Function that queues a role's next output. Arguments: the role, the fields of its prompt, and the thought that the
prompt opens (`TokenChat.thought`)."""


class _ToldIO:
    """`EpisodeIO` of an episode with scripted roles."""

    def __init__(self, io: EpisodeIO, tell: Tell) -> None:
        self._io, self._tell = io, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    def open(self, role: str, **fields: str) -> Chat:
        return _ToldChat(cast("TokenChat", self._io.open(role, **fields)), role, fields, self._tell)

    async def generate(self, role: str, **fields: str) -> Reply:
        return await self.open(role, **fields).generate()


class _ToldChat:
    """`Chat` of an episode with scripted roles."""

    def __init__(self, chat: TokenChat, role: str, fields: Mapping[str, str], tell: Tell) -> None:
        self._chat, self._role, self._fields, self._tell = chat, role, fields, tell

    async def generate(self, prefix: bool = False) -> Reply:
        self._tell(self._role, self._fields, self._chat.thought)
        return await self._chat.generate(prefix)

    def observe(self, text: str, trusted: bool = False) -> None:
        self._chat.observe(text, trusted)

    def fork(self, role: str, **fields: str) -> Chat:
        return _ToldChat(self._chat.fork(role, **fields), role, fields, self._tell)


class _Told:
    """A workflow whose roles write the outputs of each question's oracle."""

    def __init__(
        self, agent: LoadedAgent, oracles: Mapping[str, Speaker], sampler: QueuedSampler, form: TokenFormat
    ) -> None:
        self._agent, self._oracles, self._sampler, self._form = agent, oracles, sampler, form

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode.

        A role that stops at the tags of actions continues in the same turn of the model, as in `play`; other roles end
        their turn.
        """
        oracle = self._oracles[question.id]

        def tell(role: str, fields: Mapping[str, str], thought: str) -> None:
            text = response_after(thought, oracle.reply(role, fields))
            if self._agent.roles[role].stop is None:
                self._sampler.put(scripted_io.name, text_ids(text, self._form), "stop")
            else:
                self._sampler.put(scripted_io.name, turn_ids(text, self._form), "eos")

        scripted_io: Any = _ToldIO(io, tell)
        await self._agent.workflow.run(question, scripted_io)


def play_team(
    name: str,
    task: Task,
    oracles: Mapping[str, Speaker],
    form: TokenFormat,
    sampler: QueuedSampler | None = None,
) -> list[Episode]:
    """Runs a team in which an oracle writes for every role.

    Args:
        name: Name of an agent card for whose roles the oracles write.
        task: Task that holds the questions.
        oracles: Oracles by question id.
        form: Token format of the model that will learn from the episodes.
        sampler: Sampler that returns the oracles' outputs. Default: a new one.

    Returns:
        One episode per oracle, in the order of `oracles`.
    """
    agent, sampler = load_agent(name), sampler or QueuedSampler()
    workflow: Agent = _Told(agent, oracles, sampler, form)
    return run_written(task, replace(agent, workflow=workflow), sampler, form, [task.find(id) for id in oracles])
