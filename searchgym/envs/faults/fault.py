"""Interface of faults: what the live web does to a search, as a pure function of a seed, the question and the turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Interval

from searchgym.options import Kind, kind_name
from searchgym.records import Hit
from searchgym.retrieval.schedule import draw_noise, random_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Kind):
    """A fault of the search engine, which spoils the hits of some searches; one class per fault.

    Whether a search is spoilt, and how, depends only on the seed, the question and the turn. So single and vector
    environments agree, every agent meets the same schedule, and searching again in a later turn may succeed.
    """

    kinds_in: ClassVar = "searchgym.envs.faults.kinds"
    noun: ClassVar = "fault"
    notice: ClassVar[str] = ""
    """Text that a spoilt search shows instead of hits; empty if it shows the changed hits."""
    rate: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """Probability that a search is spoilt."""
    first: Annotated[int, Ge(1)] = 1
    """First turn in which searches may be spoilt."""
    last: Annotated[int, Ge(1)] | None = None
    """Last turn in which searches may be spoilt. Default: no limit."""
    seed: int = 0
    """Seed of the schedule."""

    def happens(self, question_id: str, turn: int) -> bool:
        """Returns whether the search of a turn is spoilt."""
        within = self.first <= turn and (self.last is None or turn <= self.last)
        return within and draw_noise(self.rate, self._numbers(question_id, turn))

    def spoilt(self, question_id: str, turn: int, hits: Sequence[Hit]) -> list[Hit]:
        """Returns the hits of a query as the fault changes them; none if it shows a notice."""
        numbers = self._numbers(question_id, turn)
        next(numbers)  # decided that it happens
        return [] if self.notice else self.changed(hits, numbers)

    def changed(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        """Changes the hits of a query.

        Args:
            hits: Hits of the retriever, best first.
            numbers: Random integers from 0 to 2**64 - 1.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither notice nor changed")

    def _numbers(self, question_id: str, turn: int) -> Iterator[int]:
        return random_numbers(self.seed, turn, f"{kind_name(self)} {question_id}")
