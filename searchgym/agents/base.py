"""Interfaces of agents: an agent is an async workflow that acts in one episode.

Control flow is plain Python. Hundreds of episodes run at once; the engine batches their searches and model calls::

    class TwoSearches:
        async def run(self, question: Question, io: EpisodeIO) -> None:
            first = await io.step(Search((question.text,)))
            await io.step(Search((first.hits[0].passage.title,)))
            await io.step(Answer("..."))
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from searchgym import protocol
from searchgym.agents.parsing import Parsed, Value
from searchgym.agents.roles import Role, load_role
from searchgym.errors import UnknownNameError, UsageError
from searchgym.named import check_call, load_object
from searchgym.options.cards import MAX_CALLS, AgentCard, find_card, load_card
from searchgym.records import Action, Call, Episode, Hit, Opened, Question, Search
from searchgym.text import cut_words


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of one action: the text for the model, the hits, and whether the episode has ended."""

    text: str
    """Observation as a model would see it; empty once the episode has ended."""
    hits: tuple[Hit, ...]
    """Hits of this action's queries, in order."""
    done: bool
    """Whether the episode has ended."""
    turns_left: int
    """Number of actions left, the answer included."""
    opened: Opened | None = None
    """Part of a page that the action showed; None for other actions."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of a model to one call."""

    text: str
    """Decoded response."""
    call: Call
    """Record of the call; a workflow whose parser rejects the text sets ``call.legal = False``."""


class Chat(Protocol):
    """One context of one model: prompt, responses and observations as one growing sequence of tokens."""

    async def generate(self, prefix: bool = False) -> Reply:
        """Samples the model's next response and appends it to the context.

        Args:
            prefix: Whether the response is a trial answer (`Call.prefix`); if the context fills up, only this response
                is cut, and the episode continues.

        Raises:
            EpisodeError: The context is full, or the agent's budget of model calls is used up: the episode has ended
                with ``stop_reason="context"`` or ``"calls"``.
        """
        ...

    def observe(self, text: str, trusted: bool = False) -> None:
        """Appends text to the context, as tokens that are never trained on.

        Args:
            text: Text of the environment.
            trusted: Whether the workflow itself wrote the whole text, so that its tags and special tokens are encoded
                as such; the text of pages, questions and models must not be trusted.
        """
        ...

    def fork(self, role: str, **fields: str) -> Chat:
        """Returns a new context that begins with all of this one and continues with another role's prompt.

        Args:
            role: Role to continue as; it must be filled by the same model.
            **fields: Values for the fields of that role's prompt.

        Raises:
            UsageError: The role is filled by another model, or the fields are not those of its prompt.
        """
        ...


class EpisodeIO(Protocol):
    """Interface of a workflow to its episode: model calls, searches, the answer and randomness."""

    @property
    def protocol(self) -> protocol.Protocol:
        """Action grammar of the environment, for workflows that parse or write actions as text."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the episode, seeded by run seed, question and attempt."""
        ...

    @property
    def turns_left(self) -> int:
        """Number of actions left, the answer included."""
        ...

    @property
    def training(self) -> bool:
        """Whether the episode will be used for training, so that a workflow may make calls that only training needs."""
        ...

    def note(self, name: str, value: float) -> None:
        """Records a number with the episode, in `Episode.notes`."""
        ...

    def open(self, role: str, **fields: str) -> Chat:
        """Starts a new context for a role, which begins with the role's prompt.

        Args:
            role: Role of the agent; its model generates the responses in the context.
            **fields: Values for the fields of the role's prompt.

        Raises:
            UsageError: The agent has no such role, or the fields are not those of its prompt.
        """
        ...

    async def generate(self, role: str, **fields: str) -> Reply:
        """Samples one response in a new context: ``open`` followed by one ``generate``."""
        ...

    async def step(self, action: Action, pages: Sequence[str] | None = None) -> Observation:
        """Executes one action in the environment.

        Args:
            action: The action.
            pages: Texts that the agent's own model wrote, one for each query of a search: they replace its hits, with
                ids that mark them as simulated.

        Raises:
            EpisodeError: The episode has ended (a workflow may leave this uncaught: the engine closes the episode), or
                the last action has not been awaited.
        """
        ...


class Agent(Protocol):
    """Workflow of an agent. It must not store per-episode state: one object runs hundreds of episodes at once."""

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode until it has ended; returning earlier leaves the question unanswered."""
        ...


@runtime_checkable
class Reviser(Agent, Protocol):
    """Workflow whose episodes can be revised: turns from a flawed one on are played again."""

    least: float
    """Least probability of the output that names the turn for an episode to be revised."""

    async def flawed_turn(self, question: Question, episode: Episode, io: EpisodeIO) -> int:
        """Returns the 1-based number of the first flawed turn of an episode that has ended, or 0 if there is none.

        Args:
            question: The question.
            episode: The episode.
            io: Interface for the calls of this decision, which become part of the revised episode.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """Agent that is ready to run: its workflow object and its roles."""

    name: str
    workflow: Agent
    """Object whose `run` acts in each episode."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Role name to role; empty for a scripted agent, which calls no model."""
    source: str = ""
    """Class and options of the workflow, ``module:Class(options)``, for the record of a run."""
    max_calls: int = MAX_CALLS
    """Maximum number of model calls per episode."""


def with_max_tokens(agent: LoadedAgent, most: int | None, thoughts: int | None = None) -> LoadedAgent:
    """Returns an agent with other token limits for all roles; None keeps a limit of the card.

    Args:
        agent: The agent.
        most: Maximum tokens of one output of a role.
        thoughts: Maximum tokens of an output before an open thought is closed.

    Raises:
        UsageError: The agent has no roles.
    """
    limits = {"max_tokens": most, "max_thought_tokens": thoughts}
    changed: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    if not changed:
        return agent
    if not agent.roles:
        raise UsageError(f"agent {agent.name} has no roles that ask a model: leave out {' or '.join(changed)}")
    roles = {name: dataclasses.replace(role, **changed) for name, role in agent.roles.items()}
    # part of the run's record, so that --resume refuses other limits
    source = ", ".join([agent.source, *(f"{name} {limit}" for name, limit in changed.items())])
    return dataclasses.replace(agent, roles=roles, source=source)


def accept(reply: Reply, parsed: Parsed[Value]) -> Value:
    """Records whether a reply was legal and returns its parsed value."""
    reply.call.legal = parsed.legal
    return parsed.value


async def ask(io: EpisodeIO, role: str, read: Callable[[str], Parsed[Value]], **fields: str) -> Value:
    """Samples one response of a role, records whether it was legal, and returns its parsed value.

    Args:
        io: The episode.
        role: Role of the agent.
        read: Parser of the role's output.
        **fields: Values for the fields of the role's prompt.
    """
    reply = await io.generate(role, **fields)
    return accept(reply, read(reply.text))


async def search_once(query: str, io: EpisodeIO) -> tuple[Hit, ...]:
    """Returns the hits of a query; no hits if only the answer's turn is left."""
    return (await io.step(Search((query,)))).hits if io.turns_left > 1 else ()


def documents(hits: Sequence[Hit], words: int, name: str = "Doc", first: int = 1) -> str:
    """Formats retrieved pages for a prompt: ``Doc1(Title: ...) text``, one line each.

    Args:
        hits: Pages in the order to show.
        words: Maximum number of words shown of each page; the rest is dropped.
        name: Word before each number.
        first: Number of the first page.
    """
    pages = enumerate((hit.passage for hit in hits), start=first)
    return "\n".join(f"{name}{i}(Title: {p.title}) {cut_words(p.text, words)}" for i, p in pages)


def read_agent(name: str) -> tuple[AgentCard, dict[str, Role]]:
    """Returns an agent's card and roles, given a name or path, without importing its workflow.

    Raises:
        UnknownNameError: No such agent; the most similar name is suggested.
        CardError: The card or a prompt cannot be read.
    """
    folder = Path()
    if ":" in name and "/" not in name:
        card = AgentCard(name=name, summary="", workflow=name)
    else:
        try:
            path = find_card("agents", name)
        except UnknownNameError as error:
            raise UnknownNameError("agent", name, [*error.accepted, "module:Class"], error.hint) from None
        card, folder = load_card(AgentCard, path), path.parent
    return card, {role: load_role(role, role_card, folder) for role, role_card in card.roles.items()}


def source_of(card: AgentCard) -> str:
    """Returns the class and options of an agent's workflow, as `LoadedAgent.source`."""
    return f"{card.workflow}({card.options or ''})"


def load_agent(name: str) -> LoadedAgent:
    """Loads an agent, given the name of a card, a path to a card, or ``"module:Class"`` (which has no roles).

    Raises:
        UnknownNameError: No such agent; the most similar name is suggested.
        UsageError: The class cannot be loaded or built, or has no async ``run``.
    """
    card, roles = read_agent(name)
    workflow = load_object(card.workflow)
    # checked before the call: a third-party card must not be able to call anything but a workflow
    run = getattr(workflow, "run", None)
    if not inspect.isclass(workflow) or not inspect.iscoroutinefunction(run):
        raise UsageError(f"agent {card.name}: {card.workflow} is not a class with `async def run(self, question, io)`")
    check_call(f"agent {card.name}: {card.workflow}.run", run, "self", "question", "io")
    try:
        agent = cast("Agent", workflow(**card.options))
    except (TypeError, SystemExit) as error:
        raise UsageError(f"agent {card.name}: {card.workflow} cannot be built from {card.options}: {error}") from error
    return LoadedAgent(card.name, agent, roles, source_of(card), card.max_calls)
