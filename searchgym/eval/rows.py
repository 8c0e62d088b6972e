"""Rows of an episode: its outputs, searches and looks at pages by turn, as `view`, `report` and `show` show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.records import Episode, Hit

Terms = Mapping[str, Sequence[float]]
"""Rewards of an episode's calls, by credit term."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call of a model with what training made of it."""

    role: str
    model_key: str
    turn: int
    legal: bool
    tokens: int
    """Number of tokens that the model wrote."""
    parts: dict[str, float]
    """Reward by credit term; empty where the rewards are not known."""
    reward: float
    """Reward of the call: the sum over `parts`."""
    advantage: float | None
    """Mean advantage over the call's tokens; None if the call is not trained on: its model key is frozen, its sequence
    left the batch, or its step was not recorded."""
    text: str


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One search, or one look at a page."""

    turn: int
    id: str
    function: str
    """``search``, ``open`` or ``more``."""
    query: str
    """Query of a search, or the page that was asked for; empty for ``more``."""
    hits: Sequence[Hit] | None
    """Hits of a search; None for a look at a page."""
    page: str | None = None
    """Title and part of the page that was shown; None for a search, or if there was no such page."""


Turn = tuple[int, list[tuple[int, CallRow]], list[ToolRow]]
"""Number of a turn, its calls with their places in the episode, and its uses of tools."""


def call_rows(
    episode: Episode,
    terms: Terms | None = None,
    advantages: Mapping[str, npt.NDArray[np.float32]] | None = None,
    trained: Collection[str] | None = None,
) -> list[CallRow]:
    """Returns the calls of an episode with their rewards and advantages.

    Args:
        episode: The episode.
        terms: Rewards of its calls by credit term. Default: they are not known.
        advantages: Advantages by call id, ``"<episode id>/<call>"``.
        trained: Model keys that are trained; calls of others have no advantage. Default: every key is.
    """
    rows = []
    for place, call in enumerate(episode.calls):
        parts = {name: rewards[place] for name, rewards in (terms or {}).items()}
        values = None
        if advantages and (trained is None or call.model_key in trained):
            values = advantages.get(f"{episode.id}/{place}")
        rows.append(
            CallRow(
                role=call.role,
                model_key=call.model_key,
                turn=call.turn,
                legal=call.legal,
                tokens=call.end - call.start,
                parts=parts,
                reward=sum(parts.values()),
                advantage=None if values is None else float(np.mean(values)),
                text=call.text,
            )
        )
    return rows


def turns_of(episode: Episode, calls: Sequence[CallRow]) -> Iterator[Turn]:
    """Yields the turns of an episode, given its calls as `call_rows` returns them."""
    tools = []
    for number, search in enumerate(episode.searches):
        tools.append(ToolRow(search.turn, f"search-{number}", "search", search.query, search.hits))
    for number, look in enumerate(episode.opens):
        page = f"{look.title}, part {look.part} of {look.parts}" if look.part else None
        tools.append(ToolRow(look.turn, f"open-{number}", "open" if look.target else "more", look.target, None, page))
    for turn in sorted({call.turn for call in calls} | {tool.turn for tool in tools}):
        placed = [(place, call) for place, call in enumerate(calls) if call.turn == turn]
        yield turn, placed, [tool for tool in tools if tool.turn == turn]
