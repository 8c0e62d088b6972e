"""Delays Ctrl-C until a block that must not be interrupted has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_holding = False


@contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Delays the first Ctrl-C until the block has ended; a second one is raised at once.

    Where blocks lie in one another, the outermost one holds. In another thread than the main one, which is where Ctrl-C
    arrives, nothing is held; nor in a program that was told to ignore it (begun by a script with ``&``).
    """
    global _holding
    elsewhere = threading.current_thread() is not threading.main_thread()
    if _holding or elsewhere or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    held = False

    def hold(number: int, frame: object) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    before, _holding = signal.signal(signal.SIGINT, hold), True
    try:
        yield
    finally:
        _holding = False
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
