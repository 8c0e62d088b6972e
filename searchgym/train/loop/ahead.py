"""Sampling of later steps in a thread, while the learner learns from earlier steps.

In a synchronous loop sampling and learning alternate; with this thread, sampling continues during learning, with
weights that are a bounded number of steps old. Source of the bound: AReaL, arXiv 2505.24298, section 4.1
(staleness-aware training). Deviation: whole steps are sampled one after the other, in order, while AReaL mixes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from searchgym.train.loop.collect import StepData

CLOSE_SECONDS: Final = 30.0
"""Seconds to wait for a cancelled draw to end; a longer one runs until the process ends."""


class Ahead:
    """A thread that samples the data of steps in order, at most `bound` steps ahead of learning.

    Args:
        draw: Samples the data of a 0-based step; called in the thread.
        first: First step to sample.
        last: Step after the last one to sample.
        bound: Number of steps, at least 1, by which sampling may run ahead: the weights that sample a step lack the
            updates of at most this many steps.
        give_up: Cancels the current draw; called when its result is no longer needed.
    """

    def __init__(
        self, draw: Callable[[int], StepData], first: int, last: int, bound: int, give_up: Callable[[], None]
    ) -> None:
        self._draw, self._last, self._bound, self._give_up = draw, last, bound, give_up
        self._news = threading.Condition()
        self._learnt = first
        self._drawn: dict[int, StepData] = {}
        self._error: BaseException | None = None
        self._closed, self._paused, self._drawing = False, False, False
        self._thread = threading.Thread(target=self._run, args=(first,), name="searchgym-draw", daemon=True)
        self._thread.start()

    def take(self, step: int) -> StepData:
        """Waits for the data of a step and returns it.

        Raises:
            BaseException: Any error that drawing raised.
        """
        with self._news:
            self._news.wait_for(lambda: step in self._drawn or self._error is not None)
            if step not in self._drawn:
                assert self._error is not None
                raise self._error
            return self._drawn.pop(step)

    def learnt(self, steps: int) -> None:
        """Reports the number of steps that are learnt and published, so that later steps may be sampled."""
        with self._news:
            self._learnt = steps
            self._news.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Waits for the current draw to end, and lets no other begin while the block runs."""
        with self._news:
            self._paused = True
            self._news.wait_for(lambda: not self._drawing)
        try:
            yield
        finally:
            with self._news:
                self._paused = False
                self._news.notify_all()

    def close(self) -> None:
        """Ends the thread and cancels the current draw."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        end = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < end:
            self._give_up()  # repeated, since the draw may not have begun the first time
            self._thread.join(timeout=0.5)

    def _run(self, step: int) -> None:
        try:
            while step < self._last:
                if not self._begin(step):
                    return
                data = self._draw(step)
                with self._news:
                    self._drawn[step], self._drawing = data, False
                    self._news.notify_all()
                step += 1
        except BaseException as error:  # `take` raises it again
            with self._news:
                self._error, self._drawing = error, False
                self._news.notify_all()

    def _begin(self, step: int) -> bool:
        """Waits until a step may be drawn; returns False if the thread should end instead."""
        with self._news:
            self._news.wait_for(lambda: self._closed or (not self._paused and step <= self._learnt + self._bound))
            self._drawing = not self._closed
            return self._drawing
