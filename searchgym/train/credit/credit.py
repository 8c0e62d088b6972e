"""Credit assignment: turns a finished group of episodes into a reward for each call.

A recipe lists credit terms, each with a weight and the roles that it rewards; their rewards are added. For a group (the
attempts at one question) a term returns one row per episode with one number per call. ``"module:Class"`` names a term
defined by a user. Each number becomes the reward of its call's last token; estimators of advantages spread it over
tokens, calls and episodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from searchgym.agents.roles import Role
from searchgym.envs.core import State
from searchgym.envs.reward import checked_reward, finite_number
from searchgym.envs.task import Task
from searchgym.errors import RewardError
from searchgym.records import Answer, Episode
from searchgym.scoring.judges.judge import Checked, default_judge
from searchgym.train.credit.term import CreditContext, Rows, Term, UnjudgedError
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.credit.waypoints import Names


class CallRewards(NamedTuple):
    """Rewards of an episode's calls."""

    total: list[float]
    """Sum of the terms' rewards, one number per call."""
    local_rewards: list[float]
    """Part of each total that estimators do not pass back to earlier calls; see `Term.passed_back`."""


class Credit:
    """Computes the rewards of calls by the credit terms of a recipe.

    Args:
        terms: Terms by name, users' classes imported. Default: ``outcome``.
        context: Inputs of the terms. Default: every answer scores 0 and no role has a penalty.
    """

    def __init__(self, terms: Mapping[str, Term] | None = None, context: CreditContext | None = None) -> None:
        self._terms = dict(terms or {"outcome": Outcome()})
        self._context = context or CreditContext()
        self._unjudged, self._judged = 0, (0, 0, 0, 0)
        self._largest: dict[str, list[float]] = {}
        """Largest reward of each episode since the previous `judged`, by term."""

    @property
    def trains_prefixes(self) -> bool:
        """True if prefix answers are trained on, because a term rewards them."""
        return any(term.trains_prefixes for term in self._terms.values())

    @classmethod
    def of(
        cls,
        terms: Mapping[str, Term],
        roles: Mapping[str, Role],
        load: Callable[[], Task],
        judge: Checked | None = None,
    ) -> Credit:
        """Builds the credit for an agent's roles.

        Args:
            terms: Terms by name, users' classes imported.
            roles: Roles of the agent, with their penalties.
            load: Returns the task with the questions and the reward that scores answers; called only if a term needs
                it.
            judge: Judge for terms that need one. Default: rules.
        """

        def score(episode: Episode, text: str) -> float:
            task = load()
            state = State(
                task.find(episode.question_id),
                episode.turns,
                episode.invalid,
                tuple(episode.searches),
                tuple(episode.opens),
                answer=Answer(text),
                stop_reason="answer",
            )
            return checked_reward(task.reward, state)

        penalties = {name: role.penalty for name, role in roles.items()}
        names = functools.cache(lambda: Names.of(load().questions))
        judge = judge or default_judge().open({})
        context = CreditContext(penalties, score, lambda episode: load().find(episode.question_id), names, judge)
        return cls(terms, context)

    def judged(self) -> dict[str, float]:
        """Returns counts of the judge's verdicts since the previous `judged()`; empty if no term uses the judge.

        Also returns the `Term.figures` of the rewards since then.
        """
        largest, self._largest = self._largest, {}
        figures = {key: value for name in largest for key, value in self._terms[name].figures(largest[name]).items()}
        counts, before = self._context.judge.counts, self._judged
        if not any(term.asks_judge for term in self._terms.values()):
            return {}
        self._judged = (counts.queries, counts.failed, counts.swayed, self._unjudged)
        now = zip(("asked", "failed", "swayed", "unjudged"), self._judged, before, strict=True)
        return {name: float(count - earlier) for name, count, earlier in now} | figures

    def parts(self, group: Sequence[Episode]) -> dict[str, Rows]:
        """Returns the weighted rewards of a group's calls by term; calls of roles that the term excludes get 0.

        Raises:
            RewardError: A term did not return one finite number per call.
        """
        parts = {}
        for name, term in self._terms.items():
            parts[name] = rows = _checked(name, term.rewards(group, self._context), group)
            if largest := [max(row) for row in rows if row]:
                self._largest.setdefault(name, []).extend(largest)
            for row, episode in zip(rows, group, strict=True):
                for i, call in enumerate(episode.calls):
                    row[i] = term.weight * row[i] if term.roles is None or call.role in term.roles else 0.0
                _check_size(row, episode, name)
        return parts

    def allocate(self, group: Sequence[Episode]) -> Rows:
        """Returns the reward of each call of a group: the sum over the terms."""
        return [row.total for row in self._allocate(group)]

    def _allocate(self, group: Sequence[Episode]) -> list[CallRewards]:
        """Returns the rewards of each episode's calls in a group."""
        parts = self.parts(group)
        local = [rows for name, rows in parts.items() if not self._terms[name].passed_back]
        rewards = []
        for i, episode in enumerate(group):
            calls = range(len(episode.calls))
            total, stays = (
                [float(sum(rows[i][call] for rows in some)) for call in calls] for some in (parts.values(), local)
            )
            _check_size(total, episode, ", ".join(parts))
            rewards.append(CallRewards(total, stays))
        return rewards

    def rewards(self, episodes: Sequence[Episode]) -> list[CallRewards | None]:
        """Returns the rewards of each episode's calls; each group is rewarded as a whole.

        An element is None if the episode's retriever failed, or if a judge gave no verdict on it.
        """
        rewards: list[CallRewards | None] = [None] * len(episodes)
        for members in groups_of(episodes):
            while members:
                try:
                    allocated = self._allocate([episodes[i] for i in members])
                except UnjudgedError as error:
                    self._unjudged += len(error.indices)
                    members = [member for n, member in enumerate(members) if n not in error.indices]
                    continue
                for i, of_calls in zip(members, allocated, strict=True):
                    rewards[i] = of_calls
                break
        return rewards


def _checked(name: str, returned: object, group: Sequence[Episode]) -> Rows:
    """Checks a term's return value and copies it to new lists of numbers, one row per episode.

    Raises:
        RewardError: The value is not one finite number per call.
    """
    rows = _listed(returned)
    if rows is None:
        got = f"credit {name} returned {returned!r:.200} for {len(group)} episodes"
        raise RewardError(f"{got}: expected a list of rows, one per episode")
    if len(rows) != len(group):
        raise RewardError(f"credit {name} returned {len(rows)} rows for {len(group)} episodes")
    checked: Rows = []
    for episode, row in zip(group, rows, strict=True):
        values = [finite_number(value) for value in _listed(row) or ()]
        numbers = [value for value in values if value is not None]
        if not len(numbers) == len(values) == len(episode.calls):
            expected = f"{len(episode.calls)} finite numbers, one per call"
            raise RewardError(f"credit {name} returned {row!r:.200} for episode {episode.id}: expected {expected}")
        checked.append(numbers)
    return checked


def _listed(value: object) -> list[object] | None:
    """Returns the items of an iterable (list, tuple, array) as a list; None for any other value."""
    return list(value) if isinstance(value, Iterable) and getattr(value, "shape", None) != () else None


def _check_size(rewards: Sequence[float], episode: Episode, terms: str) -> None:
    """Raises a RewardError, which names the terms, if a reward is not finite in float32."""
    for call, value in enumerate(rewards):
        if finite_number(value) is None:
            raise RewardError(
                f"credit {terms}: call {call} of episode {episode.id} gets {value:.4g}: expected a finite number, use "
                "smaller rewards or weights"
            )


def groups_of(episodes: Sequence[Episode]) -> list[list[int]]:
    """Returns the groups that credit compares, as indices of episodes; skips episodes whose retriever failed."""
    groups: dict[str | None, list[int]] = {}
    for i, episode in enumerate(episodes):
        if episode.stop_reason != "retriever_error":
            groups.setdefault(episode.group_uid, []).append(i)
    return list(groups.values())
