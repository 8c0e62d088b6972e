"""What an episode has spent by the time it reads its evidence: context tokens, searches, and stated costs.

Source: the idea of evidence recall per token of context is that of Contextual AI's CER-C, whose definition is not
public; the definition here is ours. An area over the logarithm of what was spent needs no common budget: the same
evidence for half the spending gains the same at every size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge

from searchgym.options import Options
from searchgym.records import Episode

LIMITS: Final[Mapping[str, tuple[float, float]]] = {"tokens": (256.0, 65_536.0), "searches": (1.0, 16.0)}
"""Smallest and largest spending that is told apart, by unit; each area is over the logarithm between them."""
DOUBLINGS: Final = 8
"""Binary logarithm of the ratio of the limits of a stated cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Options):
    """Stated costs of one unit, such as a price or seconds, since neither is recorded with an episode."""

    read: Annotated[float, Ge(0)] = 0.0
    """Cost of a token that a call reads; a token of the context counts again in each call, as without a cache."""
    written: Annotated[float, Ge(0)] = 0.0
    """Cost of a token that a model writes."""
    search: Annotated[float, Ge(0)] = 0.0
    """Cost of a query."""

    def limits(self) -> tuple[float, float]:
        """Returns the limits of the area: the cost of one search and 256 tokens read, and 256 times that."""
        low = 256 * self.read + self.search or self.written
        return low, low * 2**DOUBLINGS


@dataclass(frozen=True, slots=True)
class Spent:
    """What an episode has spent when it reads the hits of a turn."""

    tokens: float | None
    """Different tokens in all contexts so far, the hits among them; None if no model was asked."""
    searches: float
    """Queries so far."""
    read: float
    """Tokens that calls have read, counted again in each call."""
    written: float
    """Tokens that models have written."""

    def cost(self, rates: Rates) -> float:
        """Returns the stated cost."""
        return rates.read * self.read + rates.written * self.written + rates.search * self.searches


def spent_at(episode: Episode, turn: int) -> Spent:
    """Returns what an episode has spent when a model reads what the environment returned in a turn.

    This is at the first call of a later turn; without one, at the end of the episode. Trial answers do not count.
    """
    calls = [call for call in episode.calls if not call.prefix]
    later = next((number for number, call in enumerate(calls) if call.turn > turn), None)
    before = calls if later is None else calls[:later]
    reached: dict[int, int] = {}
    for call in before:
        reached[call.context] = max(call.end, reached.get(call.context, 0))
    if later is not None:
        reader = calls[later]
        reached[reader.context] = max(reader.start, reached.get(reader.context, 0))
    else:  # no call read it: what stands after the last call counts, too
        for number, context in enumerate(episode.contexts):
            if number in reached:
                length = context.fork + sum(len(span.ids) for span in context.spans)
                reached[number] = max(length, reached[number])
    forks = {number: episode.contexts[number].fork for number in reached if number < len(episode.contexts)}
    return Spent(
        float(sum(end - forks.get(number, 0) for number, end in reached.items())) if calls else None,
        float(sum(search.turn <= turn for search in episode.searches)),
        float(sum(call.start for call in (before if later is None else calls[: later + 1]))),
        float(sum(call.end - call.start for call in before)),
    )


Pages = Sequence[Spent | None]
"""What an episode had spent when it read each gold page of its question; None for a page that it never retrieved."""


def spent_for(episode: Episode, turns: Sequence[int | None]) -> list[Spent | None]:
    """Returns what an episode had spent for each gold page, given the turn in which it was first retrieved."""
    by_turn = {turn: spent_at(episode, turn) for turn in set(turns) if turn is not None}
    return [None if turn is None else by_turn[turn] for turn in turns]


def amounts(pages: Pages, unit: str, rates: Rates | None = None) -> list[float]:
    """Returns what was spent for each gold page in one unit; inf for a page that was never retrieved.

    Args:
        pages: What was spent for each gold page.
        unit: ``tokens``, ``searches``, or the name of a stated cost.
        rates: The stated cost.
    """

    def amount(spent: Spent) -> float:
        if rates is not None:
            return spent.cost(rates)
        return spent.searches if unit == "searches" else math.inf if spent.tokens is None else spent.tokens

    return [math.inf if spent is None else amount(spent) for spent in pages]


def area(spent: Iterable[float], limits: tuple[float, float]) -> float:
    """Returns the area under the evidence recall over the logarithm of what was spent, between two limits, in [0, 1].

    A gold page read for the lower limit or less adds its whole share, one read for the upper limit or more, or never,
    adds nothing; each halving in between adds equally.
    """
    low, high = limits
    values = [1.0 - min(max(math.log(max(s, low) / low) / math.log(high / low), 0.0), 1.0) for s in spent]
    return math.fsum(values) / len(values) if values else 0.0


def budgets(limits: tuple[float, float]) -> list[float]:
    """Returns the budgets at which a curve is shown: the lower limit, and its doublings up to the upper one."""
    low, high = limits
    return [low * 2**power for power in range(round(math.log2(high / low)) + 1)]


def recall_at(spent: Sequence[float], budget: float) -> float:
    """Returns the share of gold pages that were read for at most a budget; 0 without gold pages."""
    return sum(s <= budget for s in spent) / len(spent) if spent else 0.0
