"""Curriculum ``steps``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.curriculum.stages import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Schedule):
    """Divides the steps of the training among the stages; see `StageOptions.share`."""

    @override
    def planned(self, step: int, steps: int) -> int:
        shares = list(itertools.accumulate(stage.share for stage in self.stages))
        ends = [round(steps * share / shares[-1]) for share in shares]
        return min(sum(step >= end for end in ends), len(ends) - 1)
