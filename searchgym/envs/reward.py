"""Rewards of finished episodes: the base class of reward kinds, user functions, and the checked call of both."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import numpy as np

from searchgym import scoring
from searchgym.envs.core import State
from searchgym.errors import RewardError, UsageError
from searchgym.named import check_call, load_function, load_object
from searchgym.options import Kind, find_kind, kind_name, loaded, plain, read
from searchgym.records import Question, simulated_share
from searchgym.threads import contained

RewardFunction = Callable[[State], float]
"""Reward function: takes the state of a finished episode, returns a finite number; called once per episode. A `Reward`
is one; a user can pass any function of this type."""
SCORES: Final = ("em", "f1")
"""Rewards that are also reported as scores of every episode, except at questions without an answer."""
LARGEST: Final = float(np.finfo(np.float32).max)
"""Largest absolute value of a reward, 3.4e38: samples store rewards as float32, where larger ones are infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward(Kind):
    """A reward of finished episodes: one class per reward, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.envs.rewards"
    noun: ClassVar = "reward"

    def __call__(self, state: State) -> float:
        """Returns the reward of a finished episode: `of_answer`, or 0 if no answer qualifies for a reward.

        An answer needs at least one word other than an article: the official scripts match an answer of only articles
        and punctuation with a gold answer such as *The The*, which would reward empty answers. No answer to an
        unanswerable question is rewarded, because its gold answer is that of its answerable twin.
        """
        question, answer = state.question, state.answer
        if answer is None or question.answerable is False or not scoring.normalise_answer(answer.text):
            return 0.0
        return self.of_answer(answer.text, question)

    def of_answer(self, text: str, question: Question) -> float:
        """Returns the reward of a non-empty answer to an answerable question, a finite number."""
        return self.score(text, question.golds)

    @staticmethod
    def score(text: str, golds: Sequence[str], /) -> float:
        """Returns the reward of an answer, for rewards that depend only on the gold answers."""
        raise NotImplementedError("a reward defines score, of_answer or __call__")


@cache
def score_rewards() -> dict[str, Reward]:
    """Returns the rewards that are also reported as scores of every episode, by name."""
    return {name: find_kind(Reward, name)() for name in SCORES}


def answer_scores(state: State) -> dict[str, float]:
    """Returns ``em`` and ``f1`` of a finished episode; empty if the question is unanswerable."""
    scores = {} if state.question.answerable is False else score_rewards()
    return {name: reward(state) for name, reward in scores.items()}


NOTED: Final = 3
"""Maximum number of gold answers quoted in a note."""


def unpaid(questions: Sequence[Question]) -> list[str]:
    """Returns notes for the user on questions whose gold answers can never earn a reward; empty if there are none."""
    notes, count = [], len(questions)
    if wordless := [(gold, q.id) for q in questions if (gold := wordless_gold(q)) is not None]:
        named = ", ".join(f"{gold!r:.60} ({id})" for gold, id in wordless[:NOTED]) + ", ..." * (len(wordless) > NOTED)
        issue = "a gold answer of only articles and punctuation, which earns no reward"
        notes.append(f"{len(wordless)} of {count} questions have {issue}: {named}")
    if twins := sum(question.answerable is False for question in questions):
        notes.append(f"{twins} of {count} questions are unanswerable: answers earn no reward, and EM leaves them out")
    return notes


def wordless_gold(question: Question) -> str | None:
    """Returns the first gold answer or alias of a question that is empty after normalisation, None if there is none."""
    return next((gold for gold in question.golds if not scoring.normalise_answer(gold)), None)


def get_reward(reward: str | Mapping[str, Any] | RewardFunction) -> RewardFunction:
    """Returns a reward function, given a kind's name, options with ``kind``, ``"module:function"`` or a callable.

    Raises:
        UsageError: The name is unknown, the module or function cannot be loaded, or its signature is wrong.
        CardError: The options of a kind are invalid.
    """
    if isinstance(reward, str) and ":" in reward:
        named = load_object(reward)
        if not (isinstance(named, type) and issubclass(named, Reward)):
            function: RewardFunction = load_function("reward", reward, "state")
            return function
    if isinstance(reward, str):
        return read(find_kind(Reward, reward), {}, f"reward {reward}")
    if isinstance(reward, Mapping):
        return loaded(read(Reward, dict(reward), "reward"))
    if not callable(reward):
        raise UsageError(f"reward= is a function or the name of one, got {type(reward).__name__}")
    check_call(f"reward {reward_name(reward)}", reward, "state")
    return reward


def finite_number(value: object) -> float | None:
    """Converts the return value of a user's reward function to a float; None if it is not a valid reward.

    Valid are real numbers of absolute value at most `LARGEST`, including NumPy scalars and zero-dimensional arrays;
    strings, booleans and NaN are not.
    """
    if getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # objects with a shape have item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if abs(number) <= LARGEST else None


def score_episode(reward: RewardFunction, state: State) -> tuple[float, dict[str, float]]:
    """Returns the reward and the scores of a finished episode; the reward is 0 if the retriever failed.

    Raises:
        RewardError: The reward function raised, or returned something other than a finite number.
    """
    scores = answer_scores(state)
    if state.stop_reason == "retriever_error":
        return 0.0, scores
    if written := simulated_share(state.searches):
        scores["simulated"] = written
    return checked_reward(reward, state), scores


def checked_reward(reward: RewardFunction, state: State) -> float:
    """Calls a reward function and checks that it returns a finite number (`finite_number`).

    Raises:
        RewardError: The function raised, or returned another value; the message names the question.
    """
    context = f"on question {state.question.id!r}"
    try:
        with contained():
            returned = reward(state)
    except Exception as error:
        raise RewardError(f"reward {reward_name(reward)} raised {type(error).__name__} {context}: {error}") from error
    if (value := finite_number(returned)) is None:
        raise RewardError(
            f"reward {reward_name(reward)} returned {returned!r:.60} {context}: "
            f"expected a finite number of absolute value at most {LARGEST:.2g}"
        )
    return value


def reward_name(reward: RewardFunction) -> str:
    """Returns the name of a reward function with its options, for messages and records."""
    if not isinstance(reward, Reward):
        return getattr(reward, "__qualname__", type(reward).__name__)
    name = kind_name(reward)
    return f"{name if ':' in name else f'reward_{name}'}{plain(reward, named=True) or ''}"
