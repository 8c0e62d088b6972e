"""The record of a proposed question, and what proposals are drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from searchgym.questions.graphs.graph import Form
from searchgym.records import Episode, Question
from searchgym.train.selfplay.arms import Arm


@dataclass(frozen=True, slots=True)
class Proposal:
    """A question that a proposer made, with what it was made from."""

    question: Question
    """The question with its answer, gold pages and evidence."""
    form: Form | None = None
    """Logical form on the graph; None for a question that a language model wrote."""
    waypoints: tuple[str, ...] = ()
    """Entities between the question and its answer that have pages of their own."""
    arm: Arm | None = None
    """Kind of question that a path proposer chose."""
    episode: Episode | None = None
    """Episode in which a language model wrote the question; None if its words are a template's."""

    @property
    def text(self) -> str:
        """The question's text."""
        return self.question.text

    @property
    def answer(self) -> str:
        """The answer that the proposer had in mind."""
        return self.question.answers[0]

    @property
    def pages(self) -> tuple[str, ...]:
        """Titles of the gold pages in reading order."""
        return self.question.gold_titles or ()


class Ground(Protocol):
    """A graph to walk, with a corpus that states its facts."""

    @property
    def arms(self) -> Sequence[Arm]:
        """Kinds of questions that the graph has at least one walk for."""
        ...

    def walks(self, arm: Arm) -> Iterator[Any]:
        """Yields walks of an arm, none twice, the same ones in the same order each time."""
        ...

    def proposal(self, arm: Arm, walk: Any, number: int) -> Proposal | str:
        """Returns the proposal of a walk, or the rule that refuses it.

        Args:
            arm: Kind of question.
            walk: One of its walks.
            number: Number of the walk among those of the arm, which names the question.
        """
        ...
