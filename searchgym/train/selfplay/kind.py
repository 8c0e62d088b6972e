"""Interface of proposers, one class each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from searchgym.options import Kind, Setting
from searchgym.records import Question
from searchgym.train.selfplay.source import QuestionStream

if TYPE_CHECKING:
    from searchgym.envs.task import Task


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
