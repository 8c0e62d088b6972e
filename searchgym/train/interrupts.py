"""Ctrl-C that waits for what must not be cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Holds the first Ctrl-C back until the block is done; the second one is raised at once.

    Blocks may lie in one another: the outermost one raises. Each holds one of its own, so that a second Ctrl-C waits
    for the end of an inner block that it falls into, if the first one did not. In another thread than the main one,
    which is where Ctrl-C arrives, nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = False

    def hold(number: int, frame: object) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        signal.raise_signal(signal.SIGINT)
