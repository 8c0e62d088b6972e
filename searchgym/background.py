"""Calls in daemon threads, which an interrupted program does not wait for, and the exit of a program while some run.

Python ends a daemon thread at the exit wherever it next asks for the interpreter. Inside torch that aborts the whole
program with status 134: while a forward pass runs, or while a sampler frees its keys and values after the last reply.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, NoReturn

GRACE: Final = 2.0
"""Seconds that the exit of the program waits for calls under way."""
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread and returns it; the exit of the program waits for it, but not long."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def wait() -> bool:
    """Waits for all started threads, at most `GRACE` seconds; returns whether all have ended."""
    end = time.monotonic() + GRACE
    with contextlib.suppress(KeyboardInterrupt):  # a second one: whoever sent it does not want to wait
        for thread in list(_threads):
            thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_threads))


def leave(status: int) -> NoReturn:
    """Ends the program with a status, as `sys.exit` does, but even if a thread computes for longer than `GRACE`."""
    if wait():
        sys.exit(status)
    _threads.clear()  # they had their time: the exit functions need not wait again
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
