"""Where the questions of a run come from: a list, or a proposer that learns from the attempts at its questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from searchgym.errors import UsageError
from searchgym.records import Episode, Question


class QuestionStream(Protocol):
    """Gives each step of a run its questions."""

    name: str
    """Name before its metrics."""
    made: bool
    """Whether it makes questions that no file has."""

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a 0-based step, none twice."""
        ...

    def more(self, step: int, round: int, count: int, drawn: Sequence[Question]) -> list[Question]:
        """Returns up to `count` further questions for a step, none of those drawn.

        Args:
            step: 0-based step.
            round: 1-based round of resampling.
            count: Number of questions that are missing.
            drawn: The step's questions so far.
        """
        ...

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Takes notice of how a step's questions were answered; returns metrics.

        Args:
            step: 0-based step.
            questions: All questions of the step.
            episodes: The attempts at them.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Returns as plain JSON all that later draws depend on besides the seed."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        ...


class ListedQuestions:
    """A fixed list of questions: each epoch asks all of them in a new order.

    Args:
        questions: The questions.
        seed: Seed of the orders.
        batch: Questions per step.

    Raises:
        UsageError: There are fewer questions than a step needs.
    """

    name, made = "questions", False

    def __init__(self, questions: Sequence[Question], seed: int, batch: int) -> None:
        if len(questions) < batch:
            raise UsageError(
                f"{len(questions)} questions for {batch} per step: give more, or make the step smaller "
                "(rollout.questions)"
            )
        self._questions, self._seed = questions, seed

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a step; see `batch_of`."""
        return [self._questions[i] for i in batch_of(len(self._questions), count, step, self._seed)]

    def more(self, step: int, round: int, count: int, drawn: Sequence[Question]) -> list[Question]:
        """Returns further questions for a step, in an order of the round's own."""
        there = {question.id for question in drawn}
        order = np.random.default_rng([self._seed, step, round]).permutation(len(self._questions))
        return [question for i in order if (question := self._questions[i]).id not in there][:count]

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Learns nothing."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns nothing: the orders depend on the seed alone."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Needs nothing."""


def batch_of(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Returns the indices of a step's items; each epoch has a new order, and no item comes twice in a step.

    Args:
        count: Number of items, at least `batch`. The rest of an epoch that is less than a batch is skipped.
        batch: Items per step.
        step: 0-based step.
        seed: Seed of the orders.
    """
    epoch, place = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [int(i) for i in order[place * batch : (place + 1) * batch]]
