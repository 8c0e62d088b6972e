"""What an agent is: an async workflow that acts in one episode.

Control flow is plain Python. Hundreds of episodes run at once; the engine batches what they wait for::

    class TwoSearches:
        async def run(self, question: Question, io: EpisodeIO) -> None:
            first = await io.step(Search((question.text,)))
            await io.step(Search((first.hits[0].passage.title,)))
            await io.step(Answer("..."))
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from searchgym import protocol
from searchgym.agents.roles import Role, load_role
from searchgym.cards import MAX_CALLS, AgentCard, find_card, list_cards, load_card
from searchgym.envs.task import load_object
from searchgym.errors import UnknownNameError, UsageError
from searchgym.records import Action, Call, Hit, Question


@dataclass(frozen=True, slots=True)
class Observation:
    """What an action brought."""

    text: str
    """As a model would see it; empty once the episode has ended."""
    hits: tuple[Hit, ...]
    """Hits of this action's queries, in order."""
    done: bool
    turns_left: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model wrote in one call."""

    text: str
    call: Call
    """Its record; a workflow whose parser refuses the text sets ``call.legal = False``."""


class Chat(Protocol):
    """One context of one model: generations and observations in turn, as one sequence of tokens."""

    async def generate(self, prefix: bool = False) -> Reply:
        """Lets the model go on.

        Args:
            prefix: The call is a prefix answer (`Call.prefix`): a full context cuts it, and does not end the episode.

        Raises:
            EpisodeError: The context is full, or the agent's budget of calls is spent: the episode has ended with
                ``stop_reason="context"`` or ``"calls"``.
        """
        ...

    def observe(self, text: str) -> None:
        """Appends what the environment said, as tokens that are never trained on."""
        ...

    def fork(self, role: str, **fields: str) -> Chat:
        """Branches off: a context that begins with all of this one, and goes on with another role's prompt.

        Raises:
            UsageError: Another model is behind that role, or the fields are not those of its prompt.
        """
        ...


class EpisodeIO(Protocol):
    """A workflow's hands: everything it may do in its episode."""

    @property
    def protocol(self) -> protocol.Protocol:
        """The environment's action grammar, for workflows that read or write text."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """The episode's own generator: the same for the same run seed, question and attempt."""
        ...

    @property
    def turns_left(self) -> int:
        """Actions left, the answer included."""
        ...

    @property
    def training(self) -> bool:
        """Whether the episode is drawn to be learnt from: a workflow may make calls that only training needs."""
        ...

    def note(self, name: str, value: float) -> None:
        """Keeps a number with the episode, in `Episode.notes`."""
        ...

    def open(self, role: str, **fields: str) -> Chat:
        """Begins a context of the model behind a role with the role's prompt.

        Raises:
            UsageError: No model is behind the role, or the fields are not those of its prompt.
        """
        ...

    async def generate(self, role: str, **fields: str) -> Reply:
        """Makes one call in a context of its own: ``open`` and one ``generate``."""
        ...

    async def step(self, action: Action) -> Observation:
        """Takes one action.

        Raises:
            EpisodeError: The episode has ended; a workflow may let it pass, the engine then closes the episode. Or the
                last action has not been awaited.
        """
        ...


class Agent(Protocol):
    """A workflow. It holds no state of an episode: one object runs hundreds at once."""

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Acts until the episode has ended; returning earlier leaves it unanswered."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """An agent ready to run."""

    name: str
    workflow: Agent
    roles: Mapping[str, Role] = field(default_factory=dict)
    """What models do in it, by name; empty for a scripted agent."""
    source: str = ""
    """``module:Class`` and its options, for the record of a run."""
    max_calls: int = MAX_CALLS
    """See `AgentCard.max_calls`."""


def documents(hits: Sequence[Hit], words: int, name: str = "Doc", first: int = 1) -> str:
    """Returns pages as a prompt shows them: ``Doc1(Title: ...) text``, a line each.

    Args:
        hits: In order.
        words: Shown of each text; the rest is cut.
        name: Before the number.
        first: Number of the first.
    """
    pages = enumerate((hit.passage for hit in hits), start=first)
    return "\n".join(f"{name}{i}(Title: {p.title}) {protocol.cut_words(p.text, words)}" for i, p in pages)


def load_agent(name: str) -> LoadedAgent:
    """Returns the agent of a card's name, a path to a card, or ``"module:Class"`` (which has no roles).

    Raises:
        UnknownNameError: No such agent; the nearest name is suggested.
        UsageError: The class cannot be loaded or built, or has no async ``run``.
    """
    folder = Path()
    if ":" in name and "/" not in name:
        card = AgentCard(name=name, summary="", workflow=name)
    else:
        try:
            path = find_card("agents", name)
        except UnknownNameError:
            raise UnknownNameError("agent", name, [*list_cards("agents"), "module:Class"]) from None
        card, folder = load_card(AgentCard, path), path.parent
    workflow = load_object(card.workflow)
    try:
        agent = workflow(**card.options)
    except TypeError as error:
        raise UsageError(f"agent {card.name}: {card.workflow} cannot be built from {card.options}: {error}") from error
    if not inspect.iscoroutinefunction(getattr(agent, "run", None)):
        raise UsageError(f"agent {card.name}: {card.workflow} has no `async def run(self, question, io)`")
    roles = {role: load_role(role, own, folder) for role, own in card.roles.items()}
    return LoadedAgent(card.name, agent, roles, f"{card.workflow}({card.options or ''})", card.max_calls)
