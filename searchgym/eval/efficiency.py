"""Evidence recall against what was spent for it: areas and curves of a run; see `searchgym.scoring.efficiency`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from searchgym.errors import UsageError
from searchgym.options import read
from searchgym.options.yaml import parse_yaml
from searchgym.scoring.efficiency import LIMITS, Pages, Rates, Spent, amounts, area, budgets, recall_at

SPENT: Final = "evidence_spent"
"""Key of a question's row: for each attempt and gold page the numbers of a `Spent`, None for a page not retrieved."""
Costs = Mapping[str, Rates]
"""Stated costs by name."""
BY: Final = "evidence_by_"
"""Beginning of the names of areas, before the unit."""


def limits_of(unit: str, costs: Costs | None = None) -> tuple[float, float]:
    """Returns the limits of a unit's area."""
    return LIMITS[unit] if unit in LIMITS else (costs or {})[unit].limits()


def areas_of(episodes: Sequence[Pages], costs: Costs | None = None) -> dict[str, list[float]]:
    """Returns the area of each episode, by unit.

    Args:
        episodes: What each episode spent for its gold pages; at least one page each.
        costs: Stated costs, in addition to tokens and searches.

    Returns:
        Tokens and searches, and the stated costs; without tokens and costs if no model was asked.
    """
    with_model = any(spent is not None and spent.tokens is not None for pages in episodes for spent in pages)
    units: dict[str, Rates | None] = dict.fromkeys(LIMITS) | dict(costs or {})
    return {
        unit: [area(amounts(pages, unit, rates), limits_of(unit, costs)) for pages in episodes]
        for unit, rates in units.items()
        if episodes and (with_model or unit == "searches")
    }


def curves_of(episodes: Sequence[Pages], costs: Costs | None = None) -> dict[str, list[list[float]]]:
    """Returns the curve of each unit of `areas_of`: [budget, mean recall over episodes] for each doubling of it."""
    curves: dict[str, list[list[float]]] = {}
    for unit in areas_of(episodes, costs):
        rows = [amounts(pages, unit, (costs or {}).get(unit)) for pages in episodes]
        steps = budgets(limits_of(unit, costs))
        curves[unit] = [[budget, float(np.mean([recall_at(row, budget) for row in rows]))] for budget in steps]
    return curves


def row_of(attempts: Sequence[Pages]) -> dict[str, Any]:
    """Returns the areas of a question, means over its attempts, and what was spent, for its row; {} without pages."""
    if not attempts or not attempts[0]:
        return {}
    means = {f"{BY}{unit}": math.fsum(values) / len(values) for unit, values in areas_of(attempts).items()}
    numbers = [[None if s is None else [s.tokens, s.searches, s.read, s.written] for s in pages] for pages in attempts]
    return means | {SPENT: numbers}


def pages_in(row: Mapping[str, Any]) -> list[list[Spent | None]]:
    """Returns what the attempts of a question's row spent for its gold pages; none if the row does not say."""
    return [[None if s is None else Spent(*s) for s in pages] for pages in row.get(SPENT) or ()]


def with_costs(rows: Mapping[str, Mapping[str, Any]], costs: Costs) -> dict[str, dict[str, Any]]:
    """Returns the rows of questions with the areas of stated costs.

    Raises:
        UsageError: No row says what was spent: the run is of an earlier version, asked no model, or its questions name
            no gold pages.
    """
    named = {id: pages for id, row in rows.items() if (pages := pages_in(row))}
    areas = {id: areas_of(pages, costs) for id, pages in named.items()}
    if not any(name in area for area in areas.values() for name in costs):
        raise UsageError("no question says what was spent for its gold pages: evaluate a model again")

    def added(id: str) -> dict[str, float]:
        by_unit = areas.get(id, {})
        return {f"{BY}{name}": float(np.mean(by_unit[name])) for name in costs if name in by_unit}

    return {id: {**row, **added(id)} for id, row in rows.items()}


def read_costs(text: str) -> dict[str, Rates]:
    """Returns stated costs from YAML such as ``{price: {read: 1.0e-7, written: 4.0e-7, search: 0.005}}``.

    Raises:
        CardError: It is not YAML, no mapping of names to rates, or a rate is negative or unknown.
        UsageError: The rates of a name are all 0, or it is ``tokens`` or ``searches``.
    """
    costs = read(dict[str, Rates], parse_yaml(text, "--cost"), "--cost")
    if not costs:
        raise UsageError("--cost is empty: give rates such as '{price: {read: 1.0e-7, search: 0.005}}'")
    for name, rates in costs.items():
        if name in LIMITS:
            raise UsageError(f"--cost {name}: the name is taken, choose another one, such as price or seconds")
        if not rates.limits()[0]:
            raise UsageError(f"--cost {name}: read, written and search are all 0")
    return costs
