"""Results of the self-check, one per promise that a training makes."""

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
    """The promise that was checked."""
    state: State
    """Whether it holds; ``not checked`` is neither."""
    said: str
    """What the check measured, or why nothing was."""


class Findings:
    """Results in the order in which their checks began; a check that runs several times keeps its first failure."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, ok: bool, said: str) -> None:
        """Records what one run of a check measured."""
        if name not in self._checks or self._checks[name].state != "failed":
            self._checks[name] = Check(name, "ok" if ok else "failed", said)

    def within(self, name: str, off: float, allowed: float, said: str) -> None:
        """Records a distance, which holds if it is at most what is allowed."""
        self.add(name, bool(off <= allowed), f"{said}; {allowed:g} is allowed")

    def skip(self, name: str, why: str) -> None:
        """Records that a promise was not checked, unless it has a result."""
        self._checks.setdefault(name, Check(name, "not checked", why))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Records an error inside the block as a failure of the named check, and raises it again as `CheckFailed`.

        Raises:
            CheckFailed: The block raised an error. The part under test may be broken in any way, so any kind counts.
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
        found = Counter(check.state for check in self._checks.values())
        return {state: found[state] for state in STATES}


class CheckFailed(Exception):  # no error of the package: it ends the steps and is never shown
    """Ends the checked steps after an error, which is already recorded."""
