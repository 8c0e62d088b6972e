"""What ends a run that goes wrong by itself: a phase past its deadline, a metric out of its range."""

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
"""Exit status of a run that was ended because a phase passed its deadline."""
RESCUE = 900.0
"""Seconds, after a deadline, to write stacks and checkpoint."""

BOUNDS = {
    "min_entropy": ("learner/entropy", False),
    "max_entropy": ("learner/entropy", True),
    "max_kl": ("learner/old_kl", True),
    "max_ref_kl": ("learner/ref_kl", True),
    "max_response_tokens": ("rollout/generated_tokens", True),
    "max_zero_variance": ("groups/zero_variance_share", True),
}
"""Guard to (metric, whether it bounds it from above)."""
LEGAL = re.compile(r"role/[^/]+/legal")
"""What `GuardOptions.min_legal` bounds."""


def check_guards(rows: Sequence[Row], options: GuardOptions) -> None:
    """Looks at the last steps' metrics.

    Args:
        rows: Of all steps so far.
        options: Bounds, and how many steps in a row must be out of them.

    Raises:
        GuardError: Names the metric, its values and the guard.
    """
    last = rows[-options.patience :]
    for name, (bounded, above) in BOUNDS.items():
        bound = getattr(options, name)
        if bound is None or len(last) < options.patience:
            continue
        kind, _, rest = bounded.partition("/")
        keyed = re.compile(rf"{kind}/([^/]+/)?{rest}")  # with several model keys each has its own
        for metric in (metric for metric in last[0] if keyed.fullmatch(metric)):
            values = [row[metric] for row in last if metric in row]
            if len(values) == len(last) and all(value > bound if above else value < bound for value in values):
                shown = ", ".join(f"{value:.4g}" for value in values)
                raise GuardError(f"{metric} was {shown} in the last steps, guard.{name} is {bound:g}")
    if options.min_legal is not None and len(last) == options.patience:
        names = [name for name in last[0] if LEGAL.fullmatch(name)]
        for name in names or ["rollout/illegal"]:  # with one role there is nothing by role
            shares = [row.get(name, 1.0) if names else 1 - row.get(name, 0.0) for row in last]
            if all(share < options.min_legal for share in shares):
                shown = ", ".join(f"{share:.4g}" for share in shares)
                why = "its prompt asks for another form than its parser reads, or max_tokens cuts it off"
                raise GuardError(
                    f"{name} was {shown} in the last steps, guard.min_legal is {options.min_legal:g}: {why}"
                )


class Watchdog:
    """Ends the process when a phase does not end: with stacks, a checkpoint and status `HUNG`.

    A thread does it, since the one that hangs cannot. What phase runs, since when and until when at the latest is in
    ``heartbeat.json``.

    Args:
        folder: The run folder.
        save: Writes a checkpoint of the last whole step, or returns at once where that is not possible.
    """

    def __init__(self, folder: Path, save: Callable[[], Path | None]) -> None:
        self._folder, self._save = folder, save

    @contextlib.contextmanager
    def phase(self, name: str, step: int, seconds: float) -> Iterator[None]:
        """Gives a block `seconds`.

        Args:
            name: For heartbeat and message.
            step: 1-based step that is being made.
            seconds: Until the process is ended.
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
                timer.join()  # if it was too late, the process is being ended: nothing may change meanwhile

    def _end(self, name: str, step: int, seconds: float) -> None:
        """Writes stacks and checkpoint, says so, and ends the process; that too within a time."""
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
    """Ends the process, whatever its other threads wait for."""
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()
    os._exit(HUNG)
