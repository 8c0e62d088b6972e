"""Draws of later steps, made while earlier ones are learnt from.

Sampling and learning take turns in a synchronous loop; here a thread samples on while the learner learns, with weights
that are a bounded number of steps old. Source of the bound: AReaL, arXiv 2505.24298, section 4.1 (staleness-aware
training). Deviation: whole steps are drawn one after the other, in their order, where AReaL mixes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from searchgym.train.run.draw import Draw

GRACE: Final = 30.0
"""Seconds for a draw that was given up to end; then it is left to the end of the process."""


class Ahead:
    """A thread that draws steps in their order, at most `bound` ahead of the one that is learnt from.

    Args:
        draw: Draws a 0-based step; called in the thread.
        first: The first step.
        last: The step after the last one.
        bound: Steps that may be drawn before the first of them has been learnt from, at least 1: weights that sample
            a step lack the updates of at most so many steps.
        give_up: Called when a draw that is under way is not needed any more: makes it raise.
    """

    def __init__(
        self, draw: Callable[[int], Draw], first: int, last: int, bound: int, give_up: Callable[[], None]
    ) -> None:
        self._draw, self._last, self._bound, self._give_up = draw, last, bound, give_up
        self._news = threading.Condition()
        self._learnt = first
        self._drawn: dict[int, Draw] = {}
        self._error: BaseException | None = None
        self._closed, self._paused, self._drawing = False, False, False
        self._thread = threading.Thread(target=self._run, args=(first,), name="searchgym-draw", daemon=True)
        self._thread.start()

    def take(self, step: int) -> Draw:
        """Returns the draw of a step, once it is there.

        Raises:
            BaseException: What drawing raised.
        """
        with self._news:
            self._news.wait_for(lambda: step in self._drawn or self._error is not None)
            if step not in self._drawn:
                assert self._error is not None
                raise self._error
            return self._drawn.pop(step)

    def learnt(self, steps: int) -> None:
        """Says how many steps have been learnt from, and their weights passed on."""
        with self._news:
            self._learnt = steps
            self._news.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Waits for the draw that is under way, and lets none begin while the block runs."""
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
        """Ends the thread; a draw that is under way is given up."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        end = time.monotonic() + GRACE
        while self._thread.is_alive() and time.monotonic() < end:
            self._give_up()  # again, if the draw had not quite begun
            self._thread.join(timeout=0.5)

    def _run(self, step: int) -> None:
        try:
            while step < self._last:
                if not self._begin(step):
                    return
                draw = self._draw(step)
                with self._news:
                    self._drawn[step], self._drawing = draw, False
                    self._news.notify_all()
                step += 1
        except BaseException as error:  # of a draw; given to who takes the next one
            with self._news:
                self._error, self._drawing = error, False
                self._news.notify_all()

    def _begin(self, step: int) -> bool:
        """Waits until a step may be drawn; returns whether it is still wanted."""
        with self._news:
            self._news.wait_for(lambda: self._closed or (not self._paused and step <= self._learnt + self._bound))
            self._drawing = not self._closed
            return self._drawing
