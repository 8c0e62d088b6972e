"""Results of the self-check, one per checked property of a training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

State = Literal["ok", "failed", "not checked"]
STATES: Final[tuple[State, ...]] = ("ok", "failed", "not checked")


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    """Checked property, as a sentence that is true if the check succeeds."""
    state: State
    """Whether the property holds, or was not checked."""
    detail: str
    """Measured values, or the reason why nothing was measured."""


class Findings:
    """Collector of results, in the order of the first run of each check; repeated checks keep their first failure."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, ok: bool, detail: str) -> None:
        """Records the result of one run of a check."""
        if name not in self._checks or self._checks[name].state != "failed":
            self._checks[name] = Check(name, "ok" if ok else "failed", detail)

    def within(self, name: str, off: float, allowed: float, detail: str) -> None:
        """Records the result of a check that succeeds if a distance is at most `allowed`."""
        self.add(name, bool(off <= allowed), f"{detail}; {allowed:g} is allowed")

    def skip(self, name: str, why: str) -> None:
        """Records that a property was not checked, unless it has a result already."""
        self._checks.setdefault(name, Check(name, "not checked", why))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Records an error inside the block as a failure of the named check, and raises `CheckFailed` from it.

        Raises:
            CheckFailed: The block raised an error of any kind.
        """
        try:
            yield
        except CheckFailed:
            raise
        except Exception as error:
            self.add(name, False, f"{type(error).__name__}: {error}")
            raise CheckFailed(name) from error

    def checks(self) -> list[Check]:
        """Returns all results."""
        return list(self._checks.values())

    def counts(self) -> dict[State, int]:
        """Returns the number of results of each state."""
        counter = Counter(check.state for check in self._checks.values())
        return {state: counter[state] for state in STATES}


class CheckFailed(Exception):  # not a `SearchGymError`, since users never see it
    """Signals that a check failed with an error, which is already recorded, and that the checked steps must end."""
