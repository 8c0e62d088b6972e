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
    """Advances to the next stage when enough answers are right."""

    up: Annotated[float, Ge(0)] = 0.6
    """Minimum share of right answers, averaged over `window` steps, for advancing to the next stage."""
    down: Annotated[float, Ge(0)] = 0.0
    """Share of right answers, averaged over `window` steps, below which the previous stage returns; 0 for never."""
    window: Annotated[int, Ge(1)] = 3
    """Number of steps over which the share of right answers is averaged."""

    @override
    def move(self, rates: Sequence[float]) -> int:
        if len(rates) < self.window:
            return 0
        mean = float(np.mean(rates[-self.window :]))
        return 1 if mean >= self.up else -1 if mean < self.down else 0
