"""Stages of a curriculum, and the interface of curricula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from annotated_types import Ge, Gt, Interval

from searchgym.options import Kind, Options, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions(Options):
    """Options of one stage of a curriculum: its mix of questions, and the noise in search results."""

    mix: dict[str | int, Annotated[float, Ge(0)]] = field(default_factory=dict)
    """Weights of the values of `Schedule.by`, such as ``{1: 0.5, 2: 0.5}``. Default: in proportion to their numbers of
    questions."""
    share: Annotated[float, Gt(0)] = 1.0
    """Relative number of steps of the stage, with ``kind: steps``."""
    noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability that all hits of a search are replaced by random passages; never in validation."""
    distractors: Annotated[int, Ge(0)] = 0
    """Number of last hits of a search that are replaced by random passages, at random ranks."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        if self.mix and not any(self.mix.values()):
            yield f"mix is {self.mix}: expected a weight above 0"

    @property
    def harder(self) -> bool:
        """True if the stage replaces hits of searches."""
        return self.noise > 0 or self.distractors > 0


class Tally(NamedTuple):
    """Number of right answers among the answers to questions of one value."""

    right: float
    """Sum of the answers' EM."""
    answers: int
    """Number of answers, right and wrong, without those whose retrieval failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Kind):
    """Base class of curricula: stages, the rule for advancing, and weights; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.curriculum.kinds"
    noun: ClassVar = "curriculum"

    stages: list[StageOptions] = field(default_factory=list)
    """Stages in order, at least one."""
    by: str = "hops"
    """Property that distinguishes questions: ``hops``, ``kind``, ``level`` or a key of their metadata."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        if not self.stages:
            yield "stages is empty: expected at least one"

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields one message for each setting of the run that is incompatible with this curriculum."""
        return ()

    def planned(self, step: int, steps: int) -> int | None:
        """Returns the stage number of a 0-based step out of `steps`; None (the default) if pass rates decide."""
        return None

    def move(self, rates: Sequence[float]) -> int:
        """Returns the number of stages to advance after a step; negative to go back. Default: 0.

        Args:
            rates: Pass rates of the steps since the stage began.
        """
        return 0

    @property
    def measured_steps(self) -> int:
        """Number of a value's last steps whose answers `weigh` receives. Default: 0, no pass rates by value."""
        return 0

    def weigh(self, mix: Mapping[str, float], tallies: Mapping[str, Tally], attempts: int) -> Mapping[str, float]:
        """Returns the weights by which the questions of a step are divided among values. Default: the mix.

        Args:
            mix: Weight of each value in the stage, above 0.
            tallies: Right answers of each measured value, over its last `measured_steps` steps that asked for it.
            attempts: Attempts at each question.
        """
        return mix

    def warning(self, metrics: Sequence[Mapping[str, float]]) -> str | None:
        """Returns a warning after a step, given the metrics of all steps so far. Default: none."""
        return None
