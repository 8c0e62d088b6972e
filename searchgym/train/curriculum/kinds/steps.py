"""Curriculum ``steps``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from searchgym.train.curriculum.stages import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Schedule):
    """Stages that each have a share of the steps; see `StageOptions.share`."""

    def planned(self, step: int, steps: int) -> int:
        """See `Schedule.planned`."""
        shares = list(itertools.accumulate(stage.share for stage in self.stages))
        ends = [round(steps * share / shares[-1]) for share in shares]
        return min(sum(step >= end for end in ends), len(ends) - 1)
