"""Runs demonstrations through the episode engine: the model's text is scripted, everything else is real."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.protocol.thoughts import CLOSING
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Finish, Sampled, SampleRequest
from searchgym.rollout.tokens import TokenFormat

AGENT: Final = "search-r1"
"""Default agent of demonstrations."""
ROLE: Final = "searcher"
"""Role of the default agent."""
MODEL_KEY: Final = "demonstration"
"""Model key of scripted responses."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Target responses of a model to one question, turn by turn."""

    question: Question
    turns: tuple[str, ...]
    """Response texts: searches, then an answer."""
    early: bool
    """True if the answer comes before all gold pages were seen."""


class WrittenSampler:
    """Base class of samplers with scripted replies; they have no weights."""

    max_context, version = 2**31 - 1, 0

    def reply(self, request: SampleRequest) -> Sampled:
        """Returns the reply to a request."""
        raise NotImplementedError(f"{type(self).__name__} defines no reply")

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the reply to each request."""
        return [self.reply(request) for request in requests]

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Always raises `UsageError`: a scripted sampler has no weights."""
        raise UsageError("a scripted sampler has no weights")

    def forget(self) -> None:
        """Does nothing: a reply depends on its own episode alone."""

    def close(self) -> None:
        """Does nothing: there are no resources to free."""


class ScriptedSampler(WrittenSampler):
    """A sampler that replays scripted turns in order; it identifies an episode by its prompt.

    Args:
        scripts: Turns as token ids, by prompt (the bytes of its int32 ids).
    """

    def __init__(self, scripts: Mapping[bytes, Sequence[npt.NDArray[np.int32]]]) -> None:
        self._left = {prompt: iter(turns) for prompt, turns in scripts.items()}
        self._lengths = sorted({len(prompt) for prompt in scripts})

    def reply(self, request: SampleRequest) -> Sampled:
        """Returns the next turn of the request's episode."""
        seen = request.ids.tobytes()
        prompts = (seen[:length] for length in self._lengths)
        ids = next(next(self._left[prompt] for prompt in prompts if prompt in self._left))
        return Sampled(ids, np.zeros(len(ids), np.float32), "stop")


def play(
    task: Task, demonstrations: Sequence[Demonstration], form: TokenFormat, agent_name: str = AGENT
) -> list[Episode]:
    """Runs demonstrations as episodes of the monolithic agent.

    Args:
        task: Task with the questions and a retriever.
        demonstrations: Demonstrations, at most one per question.
        form: Token format of the model that will learn from them; same protocol as the task.
        agent_name: Name of the agent; ``praise`` if the turns contain prefix answers, see `with_prefixes`.

    Returns:
        Episodes in the order of `demonstrations`.

    Raises:
        UsageError: The protocol is not ``"tags"``, or two questions have the same text.
    """
    if form.protocol.name != "tags":
        raise UsageError(f"demonstrations are written with tags, the token format has {form.protocol.name!r}")
    agent = load_agent(agent_name)
    scripts = {
        first_prompt(agent, form, demonstration.question).tobytes(): [
            text_ids(
                response_after(form.thought_after("stop" if number else None), turn), form, "stop" if number else None
            )
            for number, turn in enumerate(demonstration.turns)
        ]
        for demonstration in demonstrations
    }
    if len(scripts) < len(demonstrations):
        raise UsageError("two demonstrations have the same question, but an episode is identified by its prompt")
    questions = [demonstration.question for demonstration in demonstrations]
    return run_written(task, agent, ScriptedSampler(scripts), form, questions, training=True)


def run_written(
    task: Task,
    agent: LoadedAgent,
    sampler: WrittenSampler,
    form: TokenFormat,
    questions: Sequence[Question],
    training: bool = False,
) -> list[Episode]:
    """Runs one episode per question with scripted replies; returns the episodes in order.

    Args:
        task: Task that holds the questions.
        agent: Agent, all of whose roles get replies.
        sampler: Sampler that returns the replies.
        form: Token format of the replies.
        questions: Questions, each once.
        training: See `Engine`.
    """
    episodes: dict[str, Episode] = {}
    engine = Engine(task, agent, dict.fromkeys(agent.roles, Model.over(MODEL_KEY, sampler, form)), training=training)
    asyncio.run(engine.run(questions, lambda episode: episodes.update({episode.question_id: episode})))
    return [episodes[question.id] for question in questions]


def first_prompt(agent: LoadedAgent, form: TokenFormat, question: Question) -> npt.NDArray[np.int32]:
    """Returns the ids of the monolithic agent's prompt, (T,) int32."""
    fields = {"question": question.text, "instructions": form.protocol.instructions()}
    return form.prompt_ids(agent.roles[ROLE].parts(fields, form.protocol.instructions()))


def response_after(thought: str, text: str) -> str:
    """Returns a response adapted to a prompt that may already have opened a thought.

    Args:
        thought: End of the prompt from the opening marker of a thought; empty if it opens none.
        text: The response; if it begins with a thought, that is the thought opened by the prompt.
    """
    if not thought:
        return text
    opening = next(marker for marker in CLOSING if thought.startswith(marker))
    return text.removeprefix(opening) if text.startswith(opening) else f"{CLOSING[opening]}\n\n{text}"


def text_ids(text: str, form: TokenFormat, finish: Finish | None = "stop") -> npt.NDArray[np.int32]:
    """Returns the ids of a model's text, by default of one that ended at a stop; see `TokenFormat.reply_ids`."""
    return form.reply_ids(text, finish)


def turn_ids(text: str, form: TokenFormat, finish: Finish | None = "stop") -> npt.NDArray[np.int32]:
    """Returns the ids of a text and of the end of the model's turn, (T,) int32; `finish` as in `text_ids`."""
    return np.concatenate([text_ids(text, form, finish), np.array(form.end_ids[-1:], np.int32)])
