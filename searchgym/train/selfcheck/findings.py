"""Results of the self-check, one per promise that a training makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    """The promise that was checked."""
    ok: bool
    said: str
    """Description of what the check measured."""


class Findings:
    """Results in the order in which their checks began; a check that runs several times keeps its first failure."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, ok: bool, said: str) -> None:
        """Records what one run of a check measured."""
        if name not in self._checks or self._checks[name].ok:
            self._checks[name] = Check(name, bool(ok), said)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Records an error inside the block as a failure of the named check, and raises it again as `Broken`.

        Raises:
            Broken: The block raised an error. The part under test may be broken in any way, so that any kind counts.
        """
        try:
            yield
        except Broken:
            raise
        except Exception as error:
            self.add(name, False, f"{type(error).__name__}: {error}")
            raise Broken(name) from error

    def checks(self) -> list[Check]:
        """Returns all results."""
        return list(self._checks.values())


class Broken(Exception):  # no error of the package: it ends the steps and is never shown
    """Ends the checked steps after an error, which is already recorded."""
