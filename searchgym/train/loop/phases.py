"""Clock, memory reading and watchdog of the phases that a training step goes through."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from searchgym.train.learner.process import peak_gib, reset_peak
from searchgym.train.loop.folder import Row
from searchgym.train.loop.guards import Watchdog
from searchgym.train.recipe.options import DeadlineOptions

WATCHDOG_GRACE: Final = 30.0
"""Seconds the watchdog waits beyond the learner's own deadline.

A learner of several ranks knows which of them hangs, so it reports first."""


class Phases:
    """The phases of one step, with the seconds and the memory peak of each.

    Args:
        watchdog: Ends the process when a phase passes its deadline.
        deadlines: Deadlines of rollout, learning and validation.
        step: 1-based step, for the watchdog's heartbeat and message.
    """

    def __init__(self, watchdog: Watchdog, deadlines: DeadlineOptions, step: int) -> None:
        self._watchdog, self._deadlines, self._step = watchdog, deadlines, step
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._peaks: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Runs a block as a phase: on the clock, and ended by the watchdog at the phase's deadline."""
        own_deadlines = {"rollout": self._deadlines.rollout, "validation": self._deadlines.validation}
        deadline = own_deadlines.get(name, self._deadlines.learn + WATCHDOG_GRACE)
        with self.clock(name), self._watchdog.phase(name, self._step, deadline):
            yield

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Runs a block on the clock, without a deadline."""
        started = time.perf_counter()
        reset_peak()
        yield
        self._seconds[name] += time.perf_counter() - started
        self._peaks[name] = max(self._peaks[name], peak_gib())

    def seconds(self, *names: str) -> float:
        """Returns the seconds that phases took together; phases that did not run took none."""
        return sum(self._seconds[name] for name in names)

    def peak(self, *names: str) -> float:
        """Returns the peak memory over the given phases, in GiB."""
        return max(self._peaks[name] for name in names)


def pace(name: str, seconds: float, tokens: float) -> Row:
    """Returns the metrics of a part of a step: its seconds and, if it has tokens, its tokens per second."""
    row = {f"time/{name}": seconds}
    return row | {f"time/{name}_tokens_per_second": tokens / seconds} if tokens else row
