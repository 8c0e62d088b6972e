"""The stages of a curriculum, and the interface of curricula, one class each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Interval

from searchgym.options import Kind, Options, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions(Options):
    """One stage of a curriculum: its mix of questions, and how much of what searches find is noise."""

    mix: dict[str | int, Annotated[float, Ge(0)]] = field(default_factory=dict)
    """Weights of the values of `Schedule.by`, such as ``{1: 0.5, 2: 0.5}``. Empty: as many as there are."""
    share: Annotated[float, Gt(0)] = 1.0
    """Weight of the stage's share of the steps, with ``kind: steps``."""
    noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability that all hits of a search are replaced by random passages; not in validation."""
    distractors: Annotated[int, Ge(0)] = 0
    """Number of the hits of a search, the last ones, that are replaced by random passages at random ranks."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        if self.mix and not any(self.mix.values()):
            yield f"mix is {self.mix}: expected a weight above 0"

    @property
    def harder(self) -> bool:
        """True if something of what searches find is replaced."""
        return self.noise > 0 or self.distractors > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Kind):
    """Stages of a training and when each follows another: one class per curriculum, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.curriculum.kinds"
    noun: ClassVar = "curriculum"

    stages: list[StageOptions] = field(default_factory=list)
    """Stages in order, at least one."""
    by: str = "hops"
    """What tells questions apart: ``hops``, ``kind``, ``level`` or a key of their metadata."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        if not self.stages:
            yield "stages is empty: expected at least one"

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each choice of the run that does not go with this curriculum."""
        return ()

    def planned(self, step: int, steps: int) -> int | None:
        """Returns the number of the stage of a 0-based step, of `steps`; None (the default) if pass rates decide it."""
        return None

    def move(self, rates: Sequence[float]) -> int:
        """Returns by how many stages to go on after a step, negative to go back. Default: 0.

        Args:
            rates: Pass rates of the steps since the stage began.
        """
        return 0
