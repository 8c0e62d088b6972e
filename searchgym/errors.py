"""Every error that SearchGym raises on purpose.

    SearchGymError
    ├── UsageError              a wrong argument: unknown name, impossible combination
    │   └── UnknownNameError    a name that is not in a list of known names (nearest one suggested)
    ├── CardError               a card or recipe that cannot be used (unknown key, wrong type)
    ├── DataError               data that cannot be read: where (file:line), what was got, what to do
    │   └── DataMissingError    a file or data set that is not there
    ├── IndexMismatchError      an index folder that is damaged or belongs to another corpus
    ├── RetrieverError          a retriever that failed past its deadline
    │   └── BusyError           a server that cannot take a request now
    ├── RewardError             a reward that raised, or returned something that is not a finite number
    ├── ModelError              a model whose output is not finite, or that cannot be asked
    │   └── EngineLostError     an engine that samples has ended
    ├── ScoringError            predictions that do not match the questions (missing, duplicate, unknown ids)
    ├── EpisodeError            an environment used out of order (step before reset, step after the end)
    ├── TrainingError           training that must not go on (a loss that is not finite)
    │   ├── HangError           a phase that did not end by its deadline
    │   └── GuardError          a metric that left the range that the recipe allows
    └── RunExistsError          an output folder that already holds a run

A malformed *action* is never an error: the environment answers it with a notice. A retriever that fails is never an
observation: the episode ends with ``stop_reason="retriever_error"``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_LISTED = 30
"""How many known names an error message lists at most."""


class SearchGymError(Exception):
    """Base of every error raised on purpose; catching it catches them all."""


class UsageError(SearchGymError):
    """Raised when an argument is wrong."""


class UnknownNameError(UsageError):
    """Raised when a name is not among the known ones; the message suggests the nearest.

    Args:
        kind: What was looked up, for the message: ``"environment"``.
        name: What was got.
        known: Every name that would have been accepted.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, self.known)}")


class CardError(SearchGymError):
    """Raised when a card or recipe has an unknown key, a missing key or a value of the wrong type."""


class DataError(SearchGymError):
    """Raised when data cannot be read.

    Args:
        reason: What was got and what was expected.
        path: The file, if there is one.
        line: 1-based line number in the file, if the format has lines.
    """

    def __init__(self, reason: str, path: object = None, line: int | None = None) -> None:
        self.reason, self.path, self.line = reason, path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + reason)


class DataMissingError(DataError):
    """Raised when a file or data set is not there; the message says where to get it and where to put it."""


class IndexMismatchError(SearchGymError):
    """Raised when an index folder lacks a file, is damaged, or was built from another corpus."""


class RetrieverError(SearchGymError):
    """Raised when a retriever fails past its deadline, or replies with something that is not hits."""


class BusyError(RetrieverError):
    """Raised when a server cannot take a request now and will be able to later.

    Args:
        reason: Why not.
        after: Seconds after which to ask again.
    """

    def __init__(self, reason: str, after: int = 1) -> None:
        self.after = after
        super().__init__(reason)


class RewardError(SearchGymError):
    """Raised when a reward function raises, or returns something that is not a finite number."""


class ModelError(SearchGymError):
    """Raised when a model's output is not finite."""


class EngineLostError(ModelError):
    """Raised when the process or server behind a model is not there any more."""


class ScoringError(SearchGymError):
    """Raised when predictions and questions do not match one to one."""


class EpisodeError(SearchGymError):
    """Raised when an environment is used out of order: a step before a reset or after the end."""


class TrainingError(SearchGymError):
    """Raised when training must not go on: a loss, gradient or weight that is not finite, a checkpoint that fails."""


class HangError(TrainingError):
    """Raised when a phase of training did not end by its deadline."""


class GuardError(TrainingError):
    """Raised when a metric left the range that a recipe's guards allow."""


class RunExistsError(SearchGymError):
    """Raised when an output folder already holds a run and neither resume nor overwrite was asked for."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'? Known: a, b, x"`` for an error message; no guess if no known name is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(names[:MAX_LISTED]) + (f", ... ({len(names)} in all)" if len(names) > MAX_LISTED else "")
    return f"{hint} Known: {listed or 'none'}"
