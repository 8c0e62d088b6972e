"""Every error that SearchGym raises on purpose.

    SearchGymError
    ├── UsageError              a wrong argument: unknown name, impossible combination
    │   └── UnknownNameError    a name that is not in a list of known names (nearest one suggested)
    ├── CardError               a card or recipe that cannot be used (unknown key, wrong type)
    ├── DataError               data that cannot be read: where (file:line), what was got, what to do
    │   ├── DataMissingError    a file or data set that does not exist
    │   └── SubmissionError     a leaderboard submission with a field that contradicts its data
    ├── IndexMismatchError      an index folder that is damaged or belongs to another corpus
    ├── RetrieverError          a retriever that failed past its deadline
    │   └── BusyError           a server that cannot take a request now
    ├── RewardError             a reward that raised, or returned something that is not a finite number
    ├── ModelError              a model whose output is not finite, or that cannot be reached
    │   └── EngineLostError     a sampling engine whose process or server has ended
    ├── ScoringError            predictions that do not match the questions (missing, duplicate, unknown ids)
    │   └── NoVerdictError      a judge that failed, timed out, or replied with something other than a verdict
    │       └── SwayedError     an answer that makes its judge affirm a false statement
    ├── EpisodeError            an environment used out of order (step before reset, step after the end)
    ├── TrainingError           training that must stop (a loss that is not finite)
    │   ├── HangError           a phase that did not end by its deadline
    │   └── GuardError          a metric that left the range that the recipe allows
    └── RunExistsError          an output folder that already holds a run

A malformed *action* is never an error: the environment answers it with a notice. A retriever that fails is never an
observation: the episode ends with ``stop_reason="retriever_error"``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

LOGIN: Final = re.compile(r"(?<=://)[^/?#\s]*@")
"""Matches the user name and password in an address."""
MAX_LISTED = 30
"""Maximum number of known names that an error message lists."""


class SearchGymError(Exception):
    """Base class of every error that SearchGym raises on purpose; its message leaves out logins in addresses."""

    def __str__(self) -> str:
        return without_login(super().__str__())


class UsageError(SearchGymError):
    """Raised when an argument has a wrong type or value, or conflicts with another."""


class NothingLeftError(UsageError):
    """Raised when filtering questions leaves none."""


class WorldTooSmallError(UsageError):
    """Raised when a generated world yields fewer distinct questions than requested."""


class UnknownNameError(UsageError):
    """Raised when a name is unknown; the message suggests the most similar accepted name.

    Args:
        kind: Kind of thing looked up, for the message, such as ``"environment"``.
        name: The unknown name.
        accepted: All accepted names.
        hint: Further suggestion, added to the message.
    """

    def __init__(self, kind: str, name: str, accepted: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.accepted, self.hint = kind, name, sorted(accepted), hint
        super().__init__(f"unknown {kind} {name!r}{hint}{did_you_mean(name, self.accepted)}")


class CardError(SearchGymError):
    """Raised when a card or recipe has an unknown key, a missing key or a value of the wrong type."""


class DataError(SearchGymError):
    """Raised when data cannot be read.

    Args:
        reason: What was read and what was expected.
        path: The file, if the data came from one.
        line: 1-based line number in the file, if the format has lines.
    """

    def __init__(self, reason: str, path: object = None, line: int | None = None) -> None:
        self.reason, self.path, self.line = reason, path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + reason)


class BadLines:
    """Tolerance of a reader for bad lines, and the record of those it skipped: the rule behind ``--skip-bad N``.

    Args:
        limit: Number of bad lines to skip; the next one is raised.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.errors: list[DataError] = []
        """Errors of the skipped lines, in order, for the report to the user."""

    def bad(self, error: DataError) -> None:
        """Records the error of a bad line that is skipped.

        Raises:
            DataError: `error` itself, if `limit` bad lines were skipped before.
        """
        if len(self.errors) < self.limit:
            self.errors.append(error)
        elif self.limit == 0:
            raise error
        else:
            count = f"bad line number {self.limit + 1}, at most {self.limit} may be left out"
            raise type(error)(f"{error.reason} ({count})", error.path, error.line) from error


class DataMissingError(DataError):
    """Raised when a file or data set does not exist; the message says where to get it and where to put it."""


class SubmissionError(DataError):
    """Raised when a submission is refused.

    Args:
        field: Field of the manifest, or file of the submission, that is wrong.
        reason: What was got and what was expected.
        path: The file.
        line: 1-based line number in the file, if it has lines.
    """

    def __init__(self, field: str, reason: str, path: object = None, line: int | None = None) -> None:
        self.field = field
        super().__init__(f"{field}: {reason}", path, line)


class DataWarning(UserWarning):
    """Warning about data that are left out or guessed, with their location; the command line prints it as a note."""


class IndexMismatchError(SearchGymError):
    """Raised when an index folder lacks a file, is damaged, or was built from another corpus."""


class RetrieverError(SearchGymError):
    """Raised when a retriever has no valid hits: its deadline passed, its reply was malformed, or no record exists."""


class BusyError(RetrieverError):
    """Raised when a server is too busy for a request and asks the client to retry later.

    Args:
        reason: Why the request was refused.
        after: Seconds to wait before the next try.
    """

    def __init__(self, reason: str, after: int = 1) -> None:
        self.after = after
        super().__init__(reason)


class RewardError(SearchGymError):
    """Raised when a reward function raises, or returns something that is not a finite number."""


class ModelError(SearchGymError):
    """Raised when a model's output is not finite, or the model cannot be reached."""


class EngineLostError(ModelError):
    """Raised when the process or server that runs a model has ended."""


class ScoringError(SearchGymError):
    """Raised when predictions and questions do not match one to one."""


class NoVerdictError(ScoringError):
    """Raised when a judge gives no verdict: it fails, times out, or replies with something else."""


class SwayedError(NoVerdictError):
    """Raised when an answer makes its judge affirm a statement about it that is false; such an answer scores 0."""


class EpisodeError(SearchGymError):
    """Raised when an environment is used out of order: a step before a reset or after the end."""


class ReplayError(SearchGymError):
    """Raised when a recorded episode cannot be played again, because something that it depends on has changed."""


class TrainingError(SearchGymError):
    """Raised when training must stop, such as at a loss that is not finite or a checkpoint that cannot be written."""


class HangError(TrainingError):
    """Raised when a phase of training did not end by its deadline."""


class GuardError(TrainingError):
    """Raised when a metric left the range that a recipe's guards allow."""


class RunExistsError(SearchGymError):
    """Raised when an output folder already holds a run and neither resuming nor overwriting was requested."""


def drawable(text: str) -> str:
    """Returns a text with control characters and other unprintable ones replaced by U+FFFD, safe for terminals."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def did_you_mean(name: str, accepted: Iterable[str]) -> str:
    """Returns the end of an error message: ``"; did you mean 'x'?"``, or ``". Known: a, b, x"`` if no name is near.

    A dotted name is compared with those of its section, which alone are listed, if there are any.
    """
    section, names = f"{name.partition('.')[0]}.", sorted(accepted)
    if inside := [each.removeprefix(section) for each in names if each.startswith(section)]:
        near = difflib.get_close_matches(name.removeprefix(section), inside, n=1, cutoff=0.6)
        near, names = [section + each for each in near], [section + each for each in inside]
    else:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    listed = ", ".join(names[:MAX_LISTED]) + (f", ... ({len(names)} in all)" if len(names) > MAX_LISTED else "")
    return f". Known: {listed or 'none'}"


def without_login(text: str) -> str:
    """Returns a text with user names and passwords removed from its addresses, for messages and records."""
    return LOGIN.sub("", text)
