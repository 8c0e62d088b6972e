"""How training questions are selected: command-line options of ``questions select``, which pipelines set too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from searchgym.cli.options import Seed
from searchgym.errors import UsageError
from searchgym.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Options):
    """How questions are selected."""

    pool: Annotated[int, typer.Option(help="Number of questions to measure, or to take.")] = 600
    """Number of questions that are measured."""
    attempts: Annotated[int, typer.Option(help="Attempts at a question in each of two measurements.")] = 8
    """Attempts at each question in one measurement."""
    low: Annotated[float, typer.Option(help="Least pass rate.")] = 0.125
    """Least pass rate."""
    high: Annotated[float, typer.Option(help="Highest pass rate.")] = 0.75
    """Highest pass rate."""
    multi_hop: Annotated[float, typer.Option(help="Share of questions of several hops.")] = 0.8
    """Share of questions of several hops among those measured and, by leaving others out, among those selected."""
    fill: Annotated[
        bool, typer.Option("--fill", help="Take the other kind where one is too few; otherwise all are fewer.")
    ] = False
    """Whether the other kind takes the place of one that is too few. If not, all are fewer, in the share asked for."""
    temperature: Annotated[float, typer.Option(help="Sampling temperature, as in training.")] = 1.0
    """Sampling temperature of the attempts."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: A value is out of range.
        """
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(f"a window of pass rates needs 0 <= low <= high <= 1, got {self.low} to {self.high}")
        if not 0 <= self.multi_hop <= 1 or min(self.pool, self.attempts) < 1 or self.temperature <= 0:
            raise UsageError(
                f"a selection needs pool, attempts and temperature above 0, multi_hop in [0, 1], got {self}"
            )
