"""Reward functions of finished episodes: those that cards name, and those of users."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from searchgym import scoring
from searchgym.envs.core import State
from searchgym.errors import RewardError, UsageError
from searchgym.judging.judge import Checked
from searchgym.judging.rubric import coverage, rubric_score, wanted_of
from searchgym.judging.rules import RuleJudge
from searchgym.named import check_call, contained, find_function
from searchgym.records import Question

Reward = Callable[[State], float]
"""Reward function: takes the state of a finished episode, returns a finite number; called once per episode."""
LARGEST: Final = float(np.finfo(np.float32).max)
"""Largest size of a reward, 3.4e38: samples hold float32, and sums of larger ones may not be finite."""


def payable(state: State) -> str | None:
    """Returns the answer that a reward of this module may pay, None if there is none or it normalises to nothing.

    The official scripts take an answer of articles and punctuation alone for a gold answer such as *The The*: an agent
    that says nothing would earn. None of a question without an answer is paid: its gold answer is that of its twin.
    """
    if state.answer is None or state.question.answerable is False or not scoring.normalise_answer(state.answer.text):
        return None
    return state.answer.text


def reward_em(state: State) -> float:
    """Returns exact match: 1 if the answer equals a gold answer or alias after normalisation, else 0."""
    text = payable(state)
    return 0.0 if text is None else scoring.exact_match(text, state.question.golds)


def reward_f1(state: State) -> float:
    """Returns token F1 with the best gold answer or alias (HotpotQA's yes/no rule); 0 without an answer."""
    text = payable(state)
    return 0.0 if text is None else scoring.f1_score(text, state.question.golds)


def reward_recall(state: State) -> float:
    """Returns span recall with a guard on length (see `scoring.span_recall`), the largest over the gold answers."""
    text = payable(state)
    return 0.0 if text is None else max(scoring.span_recall(text, gold) for gold in state.question.golds)


def reward_rubric(state: State) -> float:
    """Returns the share of the question's rubric that the answer passes by rules; see `searchgym.judging.rubric`."""
    text = payable(state)
    return 0.0 if text is None else rubric_score(Checked(RuleJudge()), state.question, text)


def reward_coverage(state: State) -> float:
    """Returns the F1 between the parts of the answer and all answers that the question wants."""
    text = payable(state)
    return 0.0 if text is None else coverage(text, wanted_of(state.question))


REWARDS: dict[str, Reward] = {"em": reward_em, "f1": reward_f1}
"""Rewards that are scores of every episode, too, but for those at questions without an answer."""
NAMED: dict[str, Reward] = {
    **REWARDS,
    "recall": reward_recall,
    "rubric": reward_rubric,
    "coverage": reward_coverage,
}
"""Rewards that a card names without a module."""


def answer_scores(state: State) -> dict[str, float]:
    """Returns ``em`` and ``f1`` of a finished episode; nothing at a question without an answer, which has neither."""
    return {} if state.question.answerable is False else {name: reward(state) for name, reward in REWARDS.items()}


NOTED: Final = 3
"""Number of golds that a note names."""


def unpaid(questions: Sequence[Question]) -> list[str]:
    """Returns notes for the user on golds of questions that no reward of this module pays; none if all can be paid."""
    notes, count = [], len(questions)
    if found := [(gold, q.id) for q in questions if (gold := wordless_gold(q)) is not None]:
        named = ", ".join(f"{gold!r:.60} ({id})" for gold, id in found[:NOTED]) + ", ..." * (len(found) > NOTED)
        what = "a gold answer of articles and punctuation alone, for which no reward is paid"
        notes.append(f"{len(found)} of {count} questions have {what}: {named}")
    if twins := sum(question.answerable is False for question in questions):
        notes.append(f"{twins} of {count} questions have no answer: no answer to them is paid, and EM leaves them out")
    return notes


def wordless_gold(question: Question) -> str | None:
    """Returns the first gold answer or alias of a question that normalises to nothing, None if there is none."""
    return next((gold for gold in question.golds if not scoring.normalise_answer(gold)), None)


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


def finite_number(value: object) -> float | None:
    """Returns a value that a user's function returned as a float; None if it is no number that a reward can be.

    That is a real number of at most `LARGEST` either way, NumPy's and arrays without dimensions among them; no text,
    no truth value, not NaN.
    """
    if getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # what has a shape has this
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # of an integer
        return None
    return number if abs(number) <= LARGEST else None


def checked_reward(reward: Reward, state: State) -> float:
    """Calls a reward function and checks that it returns a finite number (`finite_number`).

    Raises:
        RewardError: The function raised, or returned something else; the message names the question.
    """
    name = reward_name(reward)
    try:
        with contained():
            returned = reward(state)
    except Exception as error:
        raise RewardError(
            f"reward {name} raised {type(error).__name__} on question {state.question.id!r}: {error}"
        ) from error
    value = finite_number(returned)
    if value is None:
        got = f"reward {name} returned {returned!r:.60} on question {state.question.id!r}"
        raise RewardError(f"{got}: expected a finite number, of at most {LARGEST:.2g} either way")
    return value


def reward_name(reward: Reward) -> str:
    """Returns the name of a reward function, for messages and records."""
    return getattr(reward, "__qualname__", type(reward).__name__)
