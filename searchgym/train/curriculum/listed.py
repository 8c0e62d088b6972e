"""Questions for training from a fixed list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from searchgym.errors import UsageError
from searchgym.records import Episode, Question


class ListedQuestions:
    """Question source over a fixed list: each epoch uses all questions in a new order.

    Args:
        questions: The questions.
        seed: Seed of the orders.
        batch: Questions per step.

    Raises:
        UsageError: There are fewer questions than a step needs.
    """

    name, proposes = "questions", False

    def __init__(self, questions: Sequence[Question], seed: int, batch: int) -> None:
        if len(questions) < batch:
            raise UsageError(
                f"{len(questions)} questions for {batch} per step: add more, or make the step smaller "
                "(rollout.questions)"
            )
        self._questions, self._seed = questions, seed

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a step; see `batch_of`."""
        return [self._questions[i] for i in batch_of(len(self._questions), count, step, self._seed)]

    def more(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns further questions for a step, in a random order that depends on the round."""
        used_ids = {question.id for question in used}
        order = np.random.default_rng([self._seed, step, round]).permutation(len(self._questions))
        return [question for i in order if (question := self._questions[i]).id not in used_ids][:count]

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Returns no metrics: the list does not adapt."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns an empty state: the orders depend only on the seed."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Does nothing: there is no state."""


def batch_of(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Returns the indices of a step's items; each epoch has a new order, and no item comes twice in a step.

    Args:
        count: Number of items, at least `batch`. The last items of an epoch, if fewer than a batch, are skipped.
        batch: Items per step.
        step: 0-based step.
        seed: Seed of the orders.
    """
    epoch, index = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [int(i) for i in order[index * batch : (index + 1) * batch]]
