"""Threads: torch's number of threads, daemon threads at exit, delayed Ctrl-C, and exceptions of users' code.

A small model runs with one thread, unless the user set the number. A program does not wait for its daemon threads: at
exit Python stops them when they next acquire the interpreter lock. Inside torch that aborts the whole program with
status 134: while a forward pass runs, or while a sampler frees its keys and values after the last reply.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

Result = TypeVar("Result")
EXIT_SECONDS: Final = 2.0
"""Maximum seconds that the program waits at exit for running calls."""
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread and returns it; at exit the program waits up to `EXIT_SECONDS` for it."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def wait() -> bool:
    """Waits up to `EXIT_SECONDS` seconds for all started threads and returns whether they have ended."""
    end = time.monotonic() + EXIT_SECONDS
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends the wait
        for thread in list(_threads):
            thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_threads))


def leave(status: int) -> NoReturn:
    """Ends the program with a status, as `sys.exit` does; after `EXIT_SECONDS` even if threads still run."""
    if wait():
        sys.exit(status)
    _threads.clear()  # so that the exit functions do not wait again
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# -- number of threads of torch ------------------------------------------------------------------------------------

SMALL: Final = 10_000_000
"""Number of parameters below which a model runs with one thread.

The threads of a small model wait for each other at many short matrix products. Two threads take two thirds of the time
of one on two free cores, but twice that time next to one busy process (``benchmarks/threads.py``,
docs/reference/sampling.md).
"""
SET: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with which users set the number of threads."""


@dataclass(slots=True)
class _Choice:
    """Numbers of threads chosen in this process so far."""

    usual: int = 0
    """Number of threads before the first choice."""
    present: int = 0
    """Number of threads set by the last choice; a different number now means that other code set it."""
    largest: int = 0
    """Number of parameters of the largest model."""


_choice = _Choice()


def choose_threads(parameters: int) -> None:
    """Sets torch's number of threads for this process before it runs a model; its largest model decides.

    A number set by the environment or by a call of `torch.set_num_threads` is not changed.

    Args:
        parameters: Number of the model's parameters.
    """
    import torch

    choice, present = _choice, torch.get_num_threads()
    if not choice.usual:
        # # torch's default is one thread per core, or per physical core with hyper-threading
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        choice.usual, choice.present = present, present if present in (cores, cores // 2) else 0
    if present != choice.present or any(os.environ.get(name) for name in SET):
        return
    choice.largest = max(choice.largest, parameters)
    choice.present = choice.usual if choice.largest >= SMALL else 1
    torch.set_num_threads(choice.present)


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------

_holding = False


@contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Delays the first Ctrl-C until the block has ended; a second one is raised at once.

    Of nested blocks, only the outermost delays. Nothing is delayed outside the main thread, where Ctrl-C arrives, or in
    a program that ignores Ctrl-C (started by a script with ``&``).
    """
    global _holding
    elsewhere = threading.current_thread() is not threading.main_thread()
    if _holding or elsewhere or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    pending = False

    def hold(number: int, frame: object) -> None:
        nonlocal pending
        if pending:
            raise KeyboardInterrupt
        pending = True

    before, _holding = signal.signal(signal.SIGINT, hold), True
    try:
        yield
    finally:
        _holding = False
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt


# -- code of users --------------------------------------------------------------------------------------------------


@contextmanager
def contained() -> Iterator[None]:
    """Converts exceptions of a user's code that would end the program or lose an episode into a RuntimeError.

    A SystemExit must not end a command as if it had succeeded, and a CancelledError without a cancellation must not
    drop an episode. Ctrl-C and true cancellations pass unchanged.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            with contextlib.suppress(RuntimeError):  # no event loop runs
                if (task := asyncio.current_task()) is not None and task.cancelling() > 0:
                    raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def call_within(call: Callable[[], Result], seconds: float) -> Result:
    """Runs `call` in a daemon thread, so that a hang can be abandoned without blocking the exit of the program.

    Raises:
        TimeoutError: `call` did not return in time.
        Exception: The exception of `call`; exceptions that would end the program, such as SystemExit, become a
            RuntimeError.
    """
    box: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:
            failed.append(error)

    thread = start(run, "searchgym-call")
    thread.join(max(seconds, 0.0))
    if failed and isinstance(failed[0], Exception):
        raise failed[0]
    if failed:  # such as SystemExit, which must not end this program
        raise RuntimeError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    if not box:
        raise TimeoutError("no reply before the deadline")
    return box[0]
