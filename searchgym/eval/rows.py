"""Rows of an episode: its model calls, searches and opened pages by turn, for `view`, `report` and `show`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchgym.records import Episode, Hit

Terms = Mapping[str, Sequence[float]]
"""Rewards of an episode's calls, one per call, by credit term."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call of a model, with its reward and advantage."""

    role: str
    model_key: str
    turn: int
    legal: bool
    tokens: int
    """Number of generated tokens."""
    parts: dict[str, float]
    """Reward by credit term; empty if the rewards are unknown."""
    reward: float
    """Reward of the call: the sum over `parts`."""
    advantage: float | None
    """Mean advantage over the call's tokens; None if its model key is frozen, its sequence was dropped from the batch,
    or the step's advantages were not recorded."""
    text: str


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One search, or one request to open a page or to read on."""

    turn: int
    id: str
    function: str
    """``search``, ``open`` or ``more``."""
    query: str
    """Query of a search, or the requested page; empty for ``more``."""
    hits: Sequence[Hit] | None
    """Hits of a search; None for ``open`` and ``more``."""
    page: str | None = None
    """Title and part of the opened page; None for a search, or if the page does not exist."""


Turn = tuple[int, list[tuple[int, CallRow]], list[ToolRow]]
"""(Number of the turn, its calls with their indices in the episode, its searches and opened pages)."""


def call_rows(
    episode: Episode,
    terms: Terms | None = None,
    advantages: Mapping[str, npt.NDArray[np.float32]] | None = None,
    trained: Collection[str] | None = None,
) -> list[CallRow]:
    """Returns the calls of an episode with their rewards and advantages.

    Args:
        episode: Episode to describe.
        terms: Rewards of the calls by credit term. Default: unknown.
        advantages: Advantages by call id, ``"<episode id>/<call>"``. Default: none.
        trained: Trained model keys; calls of other keys get no advantage. Default: all keys.
    """
    rows = []
    for index, call in enumerate(episode.calls):
        parts = {name: rewards[index] for name, rewards in (terms or {}).items()}
        values = None
        if advantages and (trained is None or call.model_key in trained):
            values = advantages.get(f"{episode.id}/{index}")
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
        placed = [(index, call) for index, call in enumerate(calls) if call.turn == turn]
        yield turn, placed, [tool for tool in tools if tool.turn == turn]
