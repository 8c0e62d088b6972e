"""Interfaces of sources of questions, and of proposers, one class each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from searchgym.options import Kind, Setting
from searchgym.records import Episode, Question

if TYPE_CHECKING:
    from searchgym.envs.task import Task


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


class Proposing(QuestionStream, Protocol):
    """A source of questions that no file has."""

    known: dict[str, Question]
    """Every question proposed so far, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer(Kind):
    """Who makes the questions of a run: one class per proposer, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.selfplay.kinds"
    noun: ClassVar = "proposer"

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each choice of the run that does not go with this proposer."""
        return ()

    def source(self, task: Task, env_options: Mapping[str, Any], seed: int) -> Proposing:
        """Returns the source of a run's questions.

        Args:
            task: The environment, loaded.
            env_options: The recipe's options of the environment.
            seed: Seed of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no source")
