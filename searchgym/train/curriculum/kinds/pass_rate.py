"""Curriculum ``pass-rate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from searchgym.train.curriculum.stages import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate(Schedule):
    """Stages that follow each other once enough answers are right."""

    up: Annotated[float, Ge(0)] = 0.6
    """Mean share of right answers, over `window` steps, from which on the next stage follows."""
    down: Annotated[float, Ge(0)] = 0.0
    """The same share below which the stage before comes again; 0 for never."""
    window: Annotated[int, Ge(1)] = 3
    """Number of steps of a stage over which the share is averaged."""

    @override
    def move(self, rates: Sequence[float]) -> int:
        if len(rates) < self.window:
            return 0
        mean = float(np.mean(rates[-self.window :]))
        return 1 if mean >= self.up else -1 if mean < self.down else 0
