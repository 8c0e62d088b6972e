"""Guards that end a failing run: deadlines of phases and bounds of metrics; and a warning."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import operator
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from searchgym.corpora.files import write_atomic
from searchgym.errors import GuardError, did_you_mean
from searchgym.train.learner.process import interrupt_held_back
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.options import Bound, GuardOptions

HUNG = 3
"""Exit status of a run that the watchdog ended because a phase passed its deadline."""
RESCUE = 900.0
"""Maximum seconds for writing stacks and a checkpoint after a deadline has passed."""

SAMPLER = "learner/sampler_difference"
"""Metric that has a bound by default, and another that ends a run at once."""
DEFAULT: Mapping[str, Bound | None] = {SAMPLER: Bound(max=0.02)}
"""Bounds that hold for metrics that `GuardOptions.bounds` does not name."""
GROSS = 10.0
"""Multiple of the bound of `SAMPLER` that ends a run at once: it is no rounding, but another policy."""
WHY = {
    SAMPLER: (
        ": sampler and learner compute different policies; let both compute in one type (searchgym selfcheck tells "
        "what differs), or raise the bound and correct for it by loss.importance_cap: 2"
    ),
}
"""What the message about a metric says beside the numbers."""
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
    for metric, bound in {**DEFAULT, **options.bounds}.items():
        if bound is not None and len(last) == options.patience:
            _check_bound(metric, bound, last)
        if bound is not None and metric == SAMPLER:
            _check_bound(metric, Bound(max=bound.max), rows[-1:], GROSS)
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


def bound_warning(rows: Sequence[Row], options: GuardOptions) -> str | None:
    """Returns which metrics with bounds do not exist, after the first step that learnt something; else None."""
    learnt = [row.get("learner/updates", 0) > 0 for row in rows]
    if learnt.index(True) + 1 != len(rows) if any(learnt) else True:
        return None
    known = sorted({name for row in rows for name in row})
    unknown = [metric for metric, bound in options.bounds.items() if bound and not _named(metric, known)]
    said = [f"no step so far has {metric}{did_you_mean(metric, known)}" for metric in unknown]
    return f"guard.bounds: {'; '.join(said)}" if said else None


def _named(metric: str, names: Iterable[str]) -> list[str]:
    """Returns the names of a metric: with several model keys, each has its own."""
    kind, _, rest = metric.partition("/")
    keyed = re.compile(rf"{re.escape(kind)}/([^/]+/)?{re.escape(rest)}")
    return [name for name in names if name == metric or keyed.fullmatch(name)]


def _check_bound(metric: str, bound: Bound, last: Sequence[Row], times: float = 1.0) -> None:
    """Raises a GuardError if a metric violates a bound, or `times` the bound, in all of the last steps."""
    if metric == SAMPLER and any(row.get("rollout/staleness", 0.0) for row in last):
        return  # samples of older weights differ by the updates since
    for name in _named(metric, last[0] if last else ()):
        values = [row[name] for row in last if name in row]
        for word, limit, beyond in (("most", bound.max, operator.gt), ("least", bound.min, operator.lt)):
            if limit is None or len(values) < len(last) or not all(beyond(value, times * limit) for value in values):
                continue
            shown = ", ".join(f"{value:.4g}" for value in values)
            raise GuardError(
                f"{name} was {shown} in the last steps, guard.bounds has at {word} {limit:g}"
                f"{'' if times == 1 else f' and ends a run at once at {times:g} times that'}{WHY.get(metric, '')}"
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
