"""Credit: from a finished group of episodes to a reward for each call.

A recipe names terms, which add up. A term is a function of a group, the attempts at one question, that returns one row
per episode and one number per call; a user's own is ``"module:function"``. Each number lands on its call's last token
and nowhere else: what becomes of it across tokens, calls and episodes is the advantage's affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from searchgym.agents.roles import Role
from searchgym.envs.core import State
from searchgym.envs.task import Task, checked_reward, load_function
from searchgym.errors import DataError, RewardError, UnknownNameError
from searchgym.records import Answer, Episode
from searchgym.train.algorithms.samples import outcome_rewards
from searchgym.train.recipe.options import CreditOptions

Rows = list[list[float]]
"""One row per episode of a group, one number per call of the episode."""


@dataclass(frozen=True, slots=True)
class CreditContext:
    """What a term may ask."""

    options: CreditOptions = field(default_factory=CreditOptions)
    penalties: Mapping[str, float] = field(default_factory=dict)
    """Role to its penalty, at most 0."""
    score: Callable[[Episode, str], float] = lambda episode, text: 0.0
    """What an answer would have earned in an episode: the environment's reward."""


Term = Callable[[Sequence[Episode], CreditContext], Rows]


def outcome(group: Sequence[Episode], context: CreditContext) -> Rows:
    """The episode's reward for the last call of each sequence.

    In a team every call is a sequence of its own, so that all get it; a monolithic agent's last call does.
    """
    return [outcome_rewards(episode) for episode in group]


def difference(group: Sequence[Episode], context: CreditContext) -> Rows:
    """What each turn of a team did to the answer that it would give.

    A call that proposes an answer gets its score s_t. Calls between two proposals share their difference,
    ``s_t - s_{t-1}``, each the whole of it; those before the first one share that one's score; those after the last
    one get 0. So the differences of an episode sum to ``s_T - s_0``.

    Source: M-ASK, arXiv 2601.04703, and its released code: planning and answering get s, searching, summing up and
    updating the difference, a search that ends the episode 0.
    """
    return [_differences(episode, context) for episode in group]


def _differences(episode: Episode, context: CreditContext) -> list[float]:
    rewards, between, before = [0.0] * len(episode.calls), list[int](), 0.0
    for index, call in enumerate(episode.calls):
        if call.prefix:
            continue
        if call.answer is None:
            between.append(index)
            continue
        rewards[index] = score = context.score(episode, call.answer)
        for earlier in between:
            rewards[earlier] = score - before
        between, before = [], score
    return rewards


def praise(group: Sequence[Episode], context: CreditContext) -> Rows:
    """What each search did to the answer that the model would have given at once.

    With prefix answers scored v_0 (before the first search) to v_T: ``alpha (v_t - v_{t-1})`` for the call that made
    search t, and v_t for the prefix answer itself. The rewards of an episode's searches sum to ``alpha (v_T - v_0)``.

    Source: PRAISE, arXiv 2604.03675 (alpha 0.5). The outcome is a term of its own.

    Raises:
        DataError: An episode has no prefix answers.
    """
    return [_praise(episode, context) for episode in group]


def _praise(episode: Episode, context: CreditContext) -> list[float]:
    rewards = [0.0] * len(episode.calls)
    before: float | None = None
    acted: int | None = None
    for index, call in enumerate(episode.calls):
        if not call.prefix:
            acted = index
            continue
        rewards[index] = score = context.score(episode, call.answer or "")
        if before is not None and acted is not None:
            rewards[acted] = context.options.alpha * (score - before)
        before, acted = score, None
    if before is None and episode.calls:
        raise DataError(
            f"episode {episode.id} has no prefix answers, credit praise needs them: agent praise gives them"
        )
    return rewards


def format_(group: Sequence[Episode], context: CreditContext) -> Rows:
    """The penalty of its role, where a call's output was not legal; see `RoleCard.penalty`."""
    return [[0.0 if c.legal else context.penalties.get(c.role, 0.0) for c in e.calls] for e in group]


def costs(group: Sequence[Episode], context: CreditContext) -> Rows:
    """``-turn_cost min(rounds - 1, 3) / 3 - search_cost min(searches, 3) / 3`` for every call that acts.

    Rounds are what the workflow noted as ``rounds``, else the episode's turns.

    Source: JADE, arXiv 2601.21916, its alpha and beta.
    """
    options, rows = context.options, []
    for episode in group:
        rounds, searches = episode.notes.get("rounds", float(episode.turns)), len(episode.searches)
        turns, retrievals = min(max(rounds - 1, 0), 3) / 3, min(searches, 3) / 3
        cost = 0.0 - options.turn_cost * turns - options.search_cost * retrievals
        rows.append([0.0 if call.prefix else cost for call in episode.calls])
    return rows


TERMS: dict[str, Term] = {
    "outcome": outcome,
    "difference": difference,
    "praise": praise,
    "format": format_,
    "costs": costs,
}


def get_term(name: str) -> Term:
    """Returns a term by its name, or ``"module:function"``.

    Raises:
        UnknownNameError: Neither; the nearest name is suggested.
        UsageError: The module or function cannot be loaded.
    """
    if name in TERMS:
        return TERMS[name]
    if ":" not in name:
        raise UnknownNameError("credit term", name, [*TERMS, "module:function"])
    term: Term = load_function("credit term", name)
    return term


class Credit:
    """The credit of a recipe.

    Args:
        options: Its terms and their numbers.
        context: What terms may ask; without it they score nothing and no role has a penalty.
    """

    def __init__(self, options: CreditOptions | None = None, context: CreditContext | None = None) -> None:
        self.options = options or CreditOptions()
        self._context = context or CreditContext(self.options)
        self._terms = {name: get_term(name) for name in self.options.terms}

    @property
    def trains_prefixes(self) -> bool:
        """Whether prefix answers are learnt from: some term rewards them, and the recipe wants it."""
        rewarded = "praise" in self._terms or any(name not in TERMS for name in self._terms)
        return rewarded and self.options.train_prefixes

    @classmethod
    def of(cls, options: CreditOptions, roles: Mapping[str, Role], task: Task) -> Credit:
        """Returns the credit of an agent's roles in an environment."""

        def score(episode: Episode, text: str) -> float:
            state = State(
                task.find(episode.question_id),
                episode.turns,
                episode.invalid,
                tuple(episode.searches),
                None,
                Answer(text),
                "answer",
            )
            return checked_reward(task.reward, state)

        penalties = {name: role.penalty for name, role in roles.items()}
        return cls(options, CreditContext(options, penalties, score))

    def parts(self, group: Sequence[Episode]) -> dict[str, Rows]:
        """Returns what each term gives the calls of a group.

        Raises:
            RewardError: A term returned something else than one finite number per call.
        """
        found = {name: term(group, self._context) for name, term in self._terms.items()}
        for name, rows in found.items():
            if len(rows) != len(group):
                raise RewardError(f"credit {name} returned {len(rows)} rows for {len(group)} episodes")
            for episode, row in zip(group, rows, strict=True):
                if len(row) != len(episode.calls) or not all(math.isfinite(value) for value in row):
                    wanted = f"{len(episode.calls)} finite numbers, one per call"
                    raise RewardError(
                        f"credit {name} returned {row!r:.200} for episode {episode.id}: expected {wanted}"
                    )
        return found

    def allocate(self, group: Sequence[Episode]) -> Rows:
        """Returns the reward of each call of a group: the sum of the terms."""
        parts = list(self.parts(group).values())
        return [[float(sum(values)) for values in zip(*rows, strict=True)] for rows in zip(*parts, strict=True)]
