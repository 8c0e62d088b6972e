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
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from searchgym import protocol
from searchgym.cards import AgentCard, find_card, list_cards, load_card
from searchgym.envs.task import load_object
from searchgym.errors import UnknownNameError, UsageError
from searchgym.records import Action, Hit, Question


@dataclass(frozen=True, slots=True)
class Observation:
    """What an action brought."""

    text: str
    """As a model would see it; empty once the episode has ended."""
    hits: tuple[Hit, ...]
    """Hits of this action's queries, in order."""
    done: bool
    turns_left: int


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


def load_agent(name: str) -> tuple[str, Agent]:
    """Returns (name, agent) for a card's name, a path to a card, or ``"module:Class"``.

    Raises:
        UnknownNameError: No such agent; the nearest name is suggested.
        UsageError: The class cannot be loaded or built, or has no async ``run``.
    """
    if ":" in name and "/" not in name:
        card = AgentCard(name=name, summary="", workflow=name)
    else:
        try:
            card = load_card(AgentCard, find_card("agents", name))
        except UnknownNameError:
            raise UnknownNameError("agent", name, [*list_cards("agents"), "module:Class"]) from None
    workflow = load_object(card.workflow)
    try:
        agent = workflow(**card.options)
    except TypeError as error:
        raise UsageError(f"agent {card.name}: {card.workflow} cannot be built from {card.options}: {error}") from error
    if not inspect.iscoroutinefunction(getattr(agent, "run", None)):
        raise UsageError(f"agent {card.name}: {card.workflow} has no `async def run(self, question, io)`")
    return card.name, agent
