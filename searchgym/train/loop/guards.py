"""Guards that end a failing run: bounds of metrics, and deadlines of a step's phases; also timing of phases."""

from __future__ import annotations

import faulthandler
import json
import operator
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from searchgym.corpora.files import write_atomic
from searchgym.errors import GuardError, did_you_mean
from searchgym.threads import interrupt_held_back
from searchgym.train.learner.learner import peak_gib, reset_peak
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.options import Bound, DeadlineOptions, GuardOptions

HUNG: Final = 3
"""Exit status of a run that the watchdog ended because a phase exceeded its deadline."""
RESCUE = 900.0
"""Maximum seconds for writing stacks and a checkpoint after a deadline has passed."""
WATCHDOG_GRACE: Final = 30.0
"""Seconds the watchdog waits beyond the learner's own deadline.

A learner of several ranks knows which of them hangs, so it reports first."""

SAMPLER: Final = "learner/sampler_difference"
"""Metric with a default bound, and with a larger bound that ends a run at once."""
DEFAULT: Final[Mapping[str, Bound | None]] = {SAMPLER: Bound(max=0.02)}
"""Default bounds of metrics that are not in `GuardOptions.bounds`."""
GROSS: Final = 10.0
"""Multiple of `SAMPLER`'s bound that ends a run at once: rounding cannot explain such a difference."""
PARTED: Final = (
    "sampler and learner compute different policies; use one number type for both (searchgym selfcheck shows what "
    "differs), or raise the bound and correct for it by loss.importance_cap: 2"
)
"""Likely cause of a large `SAMPLER`."""
LEGAL: Final = re.compile(r"role/[^/]+/legal")
"""Pattern of the metrics that `GuardOptions.min_legal` bounds."""
ILLEGAL: Final = "its prompt requires another format than its parser, or max_tokens cuts it off"
"""Likely cause of few legal outputs."""
SILENT: Final = 5
"""Number of steps in a row without signal after which `signal_warning` warns."""


# -- bounds of metrics ---------------------------------------------------------------------------------------------


def check_guards(rows: Sequence[Row], options: GuardOptions) -> None:
    """Checks the metrics of the last steps against the bounds of a recipe.

    Args:
        rows: Metrics of all steps so far.
        options: Bounds, and the number of consecutive steps that must violate a bound.

    Raises:
        GuardError: A metric violates its bound; the message names the metric, its values and the guard.
    """
    last = rows[-options.patience :] if len(rows) >= options.patience else []
    for metric, bound in {**DEFAULT, **options.bounds}.items():
        if bound is None:
            continue
        for steps, times in ((last, 1.0), (rows[-1:], GROSS)) if metric == SAMPLER else ((last, 1.0),):
            if metric == SAMPLER and any(row.get("rollout/staleness", 0.0) for row in steps):
                continue  # stale samples differ by the updates since
            bounded = Bound(max=bound.max) if times > 1 else bound
            for name in _named(metric, steps[0] if steps else ()):
                _check_bound(name, bounded, steps, "guard.bounds has", PARTED if metric == SAMPLER else "", times)
    if options.min_legal is not None and last:
        roles = [name for name in last[0] if LEGAL.fullmatch(name)]  # with one role, no metric is reported by role
        legal = last if roles else [{"rollout/legal": 1 - row.get("rollout/illegal", 0.0)} for row in last]
        for name in roles or ["rollout/legal"]:
            _check_bound(name, Bound(min=options.min_legal), legal, "guard.min_legal is", ILLEGAL)


def _check_bound(name: str, bound: Bound, steps: Sequence[Row], option: str, why: str = "", times: float = 1.0) -> None:
    """Raises a GuardError if a metric violates a bound (times `times`) in all of the given steps."""
    values = [row[name] for row in steps if name in row]
    for word, limit, beyond in (("most", bound.max, operator.gt), ("least", bound.min, operator.lt)):
        if limit is not None and len(values) == len(steps) and all(beyond(value, times * limit) for value in values):
            at_once = f" and ends a run at once at {times:g} times that" if times > 1 else ""
            raise GuardError(
                f"{name} was {', '.join(f'{value:.4g}' for value in values)} in the last steps, {option} at {word} "
                f"{limit:g}{at_once}{why and f': {why}'}"
            )


def bound_warning(rows: Sequence[Row], options: GuardOptions) -> str | None:
    """Returns a warning about bounds of metrics that do not exist, after the first step with an update; else None."""
    if not rows or not rows[-1].get("learner/updates", 0) > 0:
        return None
    if any(rows[at].get("learner/updates", 0) > 0 for at in range(len(rows) - 1)):  # ends at the first one
        return None
    names = sorted({name for row in rows for name in row})
    unknown = [metric for metric, bound in options.bounds.items() if bound and not _named(metric, names)]
    problems = [f"no step so far has {metric}{did_you_mean(metric, names)}" for metric in unknown]
    return f"guard.bounds: {'; '.join(problems)}" if problems else None


def signal_warning(rows: Sequence[Row]) -> str | None:
    """Returns a warning after the first `SILENT` steps in a row in which no group had signal; else None.

    Args:
        rows: Metrics of all steps so far.
    """
    if not rows or not _silent(rows[-1]):
        return None
    steps = [row for row in rows if "groups/groups" in row]
    silent = [_silent(row) for row in steps]
    ends = [end for end in range(SILENT, len(steps) + 1) if all(silent[end - SILENT : end])]
    if ends != [len(steps)]:
        return None
    reward, right, illegal = (
        sum(row.get(f"rollout/{name}", 0.0) for row in steps[-SILENT:]) / SILENT for name in ("reward", "em", "illegal")
    )
    remedy = (
        "take harder questions"
        if right > 0.5
        else "warm up the model (searchgym demonstrate, then method: supervised), raise rollout.temperature, or take "
        "easier questions"
    )
    return (
        f"no group had signal in {SILENT} steps: all attempts at a question earned the same, {reward:.2f} on average, "
        f"and {1 - illegal:.0%} of outputs were legal; nothing is learnt from this: {remedy}"
    )


def _silent(row: Row) -> bool:
    """Returns True if the step had groups, and none of them had signal."""
    groups = row.get("groups/groups")
    return groups is not None and row["groups/small"] + row["groups/zero_variance"] >= groups


def _named(metric: str, names: Iterable[str]) -> list[str]:
    """Returns the names of a metric; with several model keys, each key has one."""
    kind, _, rest = metric.partition("/")
    keyed = re.compile(rf"{re.escape(kind)}/([^/]+/)?{re.escape(rest)}")
    return [name for name in names if name == metric or keyed.fullmatch(name)]


# -- deadlines of phases -------------------------------------------------------------------------------------------


class Watchdog:
    """A timer that ends the process with status `HUNG` if a phase hangs, after writing stacks and a checkpoint.

    A separate thread ends the process, since the hanging thread cannot. ``heartbeat.json`` contains the current phase,
    its start and its deadline.

    Args:
        folder: The run folder.
        save: Saves a checkpoint of the last whole step, or returns at once if that is impossible.
    """

    def __init__(self, folder: Path, save: Callable[[], Path | None]) -> None:
        self._folder, self._save = folder, save

    @contextmanager
    def phase(self, name: str, step: int, seconds: float) -> Iterator[None]:
        """Runs a block under a deadline.

        Args:
            name: Name of the phase, for heartbeat and message.
            step: 1-based step that the phase belongs to.
            seconds: Seconds until the process is ended.
        """
        now = time.time()
        beat = {"phase": name, "step": step, "since": now, "deadline": now + seconds, "pid": os.getpid()}
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
                timer.join()  # a fired timer is ending the process: change nothing meanwhile

    def _end(self, name: str, step: int, seconds: float) -> None:
        """Writes stacks and a checkpoint, reports them, and ends the process, all within `RESCUE` seconds."""
        message = f"error: {name} of step {step} did not end within {seconds:g} s"
        last = threading.Timer(RESCUE, _leave, (f"{message}; nor did its checkpoint within {RESCUE:g} s",))
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
        _leave(f"{message}; stacks: {stacks}; checkpoint: {saved}")


def _leave(message: str) -> None:
    """Prints a message and ends the process at once, without waiting for other threads."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    os._exit(HUNG)


class Phases:
    """The phases of one step, with the seconds and the memory peak of each.

    Args:
        watchdog: Watchdog that ends the process if a phase exceeds its deadline.
        deadlines: Deadlines of rollout, learning and validation.
        step: 1-based step, for the watchdog's heartbeat and message.
    """

    def __init__(self, watchdog: Watchdog, deadlines: DeadlineOptions, step: int) -> None:
        self._watchdog, self._deadlines, self._step = watchdog, deadlines, step
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._peaks: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Runs a block as a phase, which is timed and ended by the watchdog at its deadline."""
        own_deadlines = {"rollout": self._deadlines.rollout, "validation": self._deadlines.validation}
        deadline = own_deadlines.get(name, self._deadlines.learn + WATCHDOG_GRACE)
        with self.clock(name), self._watchdog.phase(name, self._step, deadline):
            yield

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Times a block without a deadline."""
        started = time.perf_counter()
        reset_peak()
        yield
        self._seconds[name] += time.perf_counter() - started
        self._peaks[name] = max(self._peaks[name], peak_gib())

    def seconds(self, *names: str) -> float:
        """Returns the total seconds of phases; 0 for phases that did not run."""
        return sum(self._seconds[name] for name in names)

    def peak(self, *names: str) -> float:
        """Returns the peak memory over the given phases, in GiB."""
        return max(self._peaks[name] for name in names)


def pace(name: str, seconds: float, tokens: float) -> Row:
    """Returns the time metrics of a part of a step: its seconds and, if it processed tokens, tokens per second."""
    row = {f"time/{name}": seconds}
    return row | {f"time/{name}_tokens_per_second": tokens / seconds} if tokens else row
