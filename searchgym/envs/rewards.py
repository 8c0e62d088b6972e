"""Reward functions of finished episodes: those that cards name, and those of users."""

from __future__ import annotations

import math
from collections.abc import Callable

from searchgym import scoring
from searchgym.envs.core import State
from searchgym.errors import RewardError, UsageError
from searchgym.judging.judge import Checked
from searchgym.judging.rubric import coverage, rubric_score, wanted_of
from searchgym.judging.rules import RuleJudge
from searchgym.named import check_call, find_function

Reward = Callable[[State], float]
"""Reward function: takes the state of a finished episode, returns a finite number; called once per episode."""


def reward_em(state: State) -> float:
    """Returns exact match: 1 if the answer equals a gold answer or alias after normalisation, else 0."""
    return 0.0 if state.answer is None else scoring.exact_match(state.answer.text, state.question.golds)


def reward_f1(state: State) -> float:
    """Returns token F1 with the best gold answer or alias (HotpotQA's yes/no rule); 0 without an answer."""
    return 0.0 if state.answer is None else scoring.f1_score(state.answer.text, state.question.golds)


def reward_recall(state: State) -> float:
    """Returns span recall with a guard on length (see `scoring.span_recall`), the largest over the gold answers."""
    answer = state.answer
    return 0.0 if answer is None else max(scoring.span_recall(answer.text, gold) for gold in state.question.golds)


def reward_rubric(state: State) -> float:
    """Returns the share of the question's rubric that the answer passes by rules; see `searchgym.judging.rubric`."""
    return 0.0 if state.answer is None else rubric_score(Checked(RuleJudge()), state.question, state.answer.text)


def reward_coverage(state: State) -> float:
    """Returns the F1 between the parts of the answer and all answers that the question wants."""
    return 0.0 if state.answer is None else coverage(state.answer.text, wanted_of(state.question))


REWARDS: dict[str, Reward] = {"em": reward_em, "f1": reward_f1}
"""Rewards that are scores of every episode, too."""
NAMED: dict[str, Reward] = {
    **REWARDS,
    "recall": reward_recall,
    "rubric": reward_rubric,
    "coverage": reward_coverage,
}
"""Rewards that a card names without a module."""


def get_reward(reward: str | Reward) -> Reward:
    """Returns a reward function from a callable, a known name or ``"module:function"``.

    Raises:
        UsageError: The name is unknown, the module or function cannot be loaded, or it takes other arguments.
    """
    if callable(reward):
        check_call(f"reward {reward_name(reward)}", reward, "state")
        return reward
    if not isinstance(reward, str):
        raise UsageError(f"reward= is a function or the name of one, got {type(reward).__name__}")
    function: Reward = find_function("reward", reward, NAMED, "state")
    return function


def checked_reward(reward: Reward, state: State) -> float:
    """Calls a reward function and checks that it returns a finite number.

    Raises:
        RewardError: The function raised, or returned something else; the message names the question.
    """
    name = reward_name(reward)
    try:
        value = float(reward(state))
    except Exception as error:
        raise RewardError(
            f"reward {name} raised {type(error).__name__} on question {state.question.id!r}: {error}"
        ) from error
    if not math.isfinite(value):
        raise RewardError(f"reward {name} returned {value} on question {state.question.id!r}: expected a finite number")
    return value


def reward_name(reward: Reward) -> str:
    """Returns the name of a reward function, for messages and records."""
    return getattr(reward, "__qualname__", type(reward).__name__)
