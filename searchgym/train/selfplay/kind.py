"""Interfaces of question sources and of proposers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from searchgym.options import Kind, Setting
from searchgym.records import Episode, Question

if TYPE_CHECKING:
    from searchgym.envs.task import Task


class QuestionStream(Protocol):
    """Source of the questions of each step of a run."""

    name: str
    """Prefix of the source's metrics."""
    proposes: bool
    """True if the source generates new questions, which are in no file."""

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a 0-based step, each once."""
        ...

    def more(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns up to `count` further questions for a step, except those in `used`.

        Args:
            step: 0-based step.
            round: 1-based round of resampling.
            count: Number of missing questions.
            used: Questions of the step so far.
        """
        ...

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Learns from the attempts at a step's questions; returns metrics.

        Args:
            step: 0-based step.
            questions: All questions of the step.
            episodes: The attempts at them.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Returns, as plain JSON, the state that later draws depend on in addition to the seed."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
        ...


class Proposing(QuestionStream, Protocol):
    """Source of generated questions, which are in no file."""

    proposed: dict[str, Question]
    """Every question proposed so far, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer(Kind):
    """Base class of proposers, which generate the questions of a run; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.selfplay.kinds"
    noun: ClassVar = "proposer"

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields one message for each setting of the run that is incompatible with this proposer."""
        return ()

    def source(self, task: Task, env_options: Mapping[str, Any], seed: int) -> Proposing:
        """Returns the source of a run's questions.

        Args:
            task: The environment, loaded.
            env_options: The recipe's options of the environment.
            seed: Seed of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no source")
