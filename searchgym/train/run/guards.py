"""Guards that end a failing run: deadlines of phases and bounds of metrics; and a warning."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from searchgym.corpora.files import write_atomic
from searchgym.errors import GuardError
from searchgym.train.interrupts import interrupt_held_back
from searchgym.train.recipe.options import GuardOptions
from searchgym.train.run.folder import Row

HUNG = 3
"""Exit status of a run that the watchdog ended because a phase passed its deadline."""
RESCUE = 900.0
"""Maximum seconds for writing stacks and a checkpoint after a deadline has passed."""

BOUNDS = {
    "min_entropy": ("learner/entropy", False),
    "max_entropy": ("learner/entropy", True),
    "max_kl": ("learner/old_kl", True),
    "max_ref_kl": ("learner/ref_kl", True),
    "max_response_tokens": ("rollout/generated_tokens", True),
    "max_zero_variance": ("groups/zero_variance_share", True),
    "max_sampler_difference": ("learner/sampler_difference", True),
}
"""The metric that each guard bounds, and True for an upper bound."""
GROSS = 10.0
"""Multiple of `GuardOptions.max_sampler_difference` that ends a run at once: it is no rounding, but another policy."""
WHY = {
    "max_sampler_difference": (
        ": sampler and learner compute different policies; let both compute in one type (searchgym selfcheck tells "
        "what differs), or raise the bound and correct for it by loss.importance_cap: 2"
    ),
}
"""What a guard's message says beside the numbers."""
LEGAL = re.compile(r"role/[^/]+/legal")
"""Pattern of the metrics that `GuardOptions.min_legal` bounds."""


def check_guards(rows: Sequence[Row], options: GuardOptions) -> None:
    """Checks the metrics of the last steps against the bounds of a recipe.

    Args:
        rows: Metrics of all steps so far.
        options: Bounds, and the number of consecutive steps that must violate a bound.

    Raises:
        GuardError: A metric violates its bound; the message names the metric, its values and the guard.
    """
    last = rows[-options.patience :]
    for name in BOUNDS if len(last) == options.patience else ():
        _check_bound(name, getattr(options, name), last)
    _check_bound("max_sampler_difference", options.max_sampler_difference, rows[-1:], GROSS)
    if options.min_legal is not None and len(last) == options.patience:
        names = [name for name in last[0] if LEGAL.fullmatch(name)]
        for name in names or ["rollout/illegal"]:  # with one role, no metric is reported by role
            shares = [row.get(name, 1.0) if names else 1 - row.get(name, 0.0) for row in last]
            if all(share < options.min_legal for share in shares):
                shown = ", ".join(f"{share:.4g}" for share in shares)
                why = "its prompt asks for another form than its parser reads, or max_tokens cuts it off"
                raise GuardError(
                    f"{name} was {shown} in the last steps, guard.min_legal is {options.min_legal:g}: {why}"
                )


def _check_bound(name: str, bound: float | None, last: Sequence[Row], times: float = 1.0) -> None:
    """Raises a GuardError if a metric violates a bound, or `times` the bound, in all of the last steps."""
    if bound is None or not last:
        return
    if name == "max_sampler_difference" and any(row.get("rollout/staleness", 0.0) for row in last):
        return  # samples of older weights differ by the updates since
    bounded, above = BOUNDS[name]
    kind, _, rest = bounded.partition("/")
    keyed = re.compile(rf"{kind}/([^/]+/)?{rest}")  # with several model keys, each has this metric
    for metric in (metric for metric in last[0] if keyed.fullmatch(metric)):
        values = [row[metric] for row in last if metric in row]
        beyond = (value > times * bound if above else value < times * bound for value in values)
        if len(values) == len(last) and all(beyond):
            shown = ", ".join(f"{value:.4g}" for value in values)
            raise GuardError(
                f"{metric} was {shown} in the last steps, guard.{name} is {bound:g}"
                f"{'' if times == 1 else f' and ends a run at once at {times:g} times that'}{WHY.get(name, '')}"
            )


class Watchdog:
    """A timer that ends the process when a phase hangs, after writing stacks and a checkpoint; the status is `HUNG`.

    A separate thread ends it, since the hanging thread cannot. The present phase, its start and its deadline are in
    ``heartbeat.json``.

    Args:
        folder: The run folder.
        save: Saves a checkpoint of the last whole step, or returns at once if that is impossible.
    """

    def __init__(self, folder: Path, save: Callable[[], Path | None]) -> None:
        self._folder, self._save = folder, save

    @contextlib.contextmanager
    def phase(self, name: str, step: int, seconds: float) -> Iterator[None]:
        """Runs a block under a deadline.

        Args:
            name: Name of the phase, for heartbeat and message.
            step: 1-based step that the phase belongs to.
            seconds: Seconds until the process is ended.
        """
        beat = {
            "phase": name,
            "step": step,
            "since": time.time(),
            "deadline": time.time() + seconds,
            "pid": os.getpid(),
        }
        with write_atomic(self._folder / "heartbeat.json") as file:
            file.write(json.dumps(beat).encode())
        timer = threading.Timer(seconds, self._end, (name, step, seconds))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with interrupt_held_back():
                timer.join()  # a timer that has fired is ending the process: nothing may change meanwhile

    def _end(self, name: str, step: int, seconds: float) -> None:
        """Writes stacks and a checkpoint, reports them, and ends the process, all within `RESCUE` seconds."""
        said = f"error: {name} of step {step} did not end within {seconds:g} s"
        last = threading.Timer(RESCUE, _leave, (f"{said}; nor did its checkpoint within {RESCUE:g} s",))
        last.daemon = True
        last.start()
        try:
            path = self._folder / "stacks.txt"
            with path.open("w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            stacks: object = path
        except OSError as error:
            stacks = error
        try:
            saved: object = self._save()
        except Exception as error:
            saved = error
        last.cancel()
        _leave(f"{said}; stacks: {stacks}; checkpoint: {saved}")


def _leave(said: str) -> None:
    """Prints a message and ends the process at once, without waiting for other threads."""
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()
    os._exit(HUNG)
