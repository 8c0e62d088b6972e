"""Threads: how many torch computes with, and daemon threads at the exit of a program; what would end it too early.

A small model runs with one thread, unless the number was set. A daemon thread is one that an interrupted program does
not wait for: Python ends it at the exit wherever it next asks for the interpreter. Inside torch that aborts the whole
program with status 134: while a forward pass runs, or while a sampler frees its keys and values after the last reply.
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
    """Waits for all started threads, at most `EXIT_SECONDS` seconds; returns whether all have ended."""
    end = time.monotonic() + EXIT_SECONDS
    with contextlib.suppress(KeyboardInterrupt):  # a second one: whoever sent it does not want to wait
        for thread in list(_threads):
            thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_threads))


def leave(status: int) -> NoReturn:
    """Ends the program with a status, as `sys.exit` does, but even if a thread computes on, after `EXIT_SECONDS`."""
    if wait():
        sys.exit(status)
    _threads.clear()  # they had their time: the exit functions need not wait again
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# -- how many torch computes with -----------------------------------------------------------------------------------

SMALL: Final = 10_000_000
"""Parameters below which a model runs with one thread.

The threads of a small model wait for each other at many short products. With two of them and two free cores it takes
two thirds of the time, but beside a single busy process twice the time (``benchmarks/threads.py``,
docs/reference/sampling.md).
"""
SET: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number."""


@dataclass(slots=True)
class _Choice:
    """What was chosen in this process so far."""

    usual: int = 0
    """Number of threads before the first choice."""
    present: int = 0
    """Number of threads since the last one; another means that somebody else has set it."""
    largest: int = 0
    """Parameters of the largest model."""


_choice = _Choice()


def choose_threads(parameters: int) -> None:
    """Chooses the number of threads of this process, which is about to run a model; its largest model decides.

    A number that is not torch's own, because the environment or a call of `torch.set_num_threads` set it, stays.

    Args:
        parameters: Number of the model's parameters.
    """
    import torch

    choice, present = _choice, torch.get_num_threads()
    if not choice.usual:
        # torch takes a thread for each core, or for each two that are one in hardware
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


# -- code of users --------------------------------------------------------------------------------------------------


@contextmanager
def contained() -> Iterator[None]:
    """Turns what would end the program or lose an episode, raised by a user's code, into a RuntimeError.

    A SystemExit must not end a command as if all were well, nor a CancelledError that nobody asked for leave out an
    episode. Ctrl-C and a task that is being cancelled go on as they are.
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
        TimeoutError: There was no result in time.
        Exception: Whatever `call` raised; a RuntimeError for what would end the program, such as SystemExit.
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
    if failed:  # SystemExit, say: a fault of another's code that must not end this program
        raise RuntimeError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    if not box:
        raise TimeoutError("no reply before the deadline")
    return box[0]
