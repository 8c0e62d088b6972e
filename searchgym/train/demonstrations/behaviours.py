"""Behaviours of a good searcher, written into the oracle's demonstrations before reinforcement learning.

Source: Behavior Priming (repository cxcscmu/Behavior_Priming_For_Agentic_Search; known by a summary): trajectories that
show four behaviours are learnt whatever their final answer, then ordinary reinforcement learning follows.
Deviation: its trajectories come from a large model that reasons freely and are chosen by a judge; here the oracle
writes each behaviour by a fixed sentence and a real search, so that any corpus will do and a small model can learn it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Turns = tuple[str, ...]
SEARCH: Final = "<search>"


@dataclass(frozen=True, slots=True)
class Occasion:
    """A demonstration, with what a behaviour may say about it."""

    question: str
    """Text of the question."""
    turns: Turns
    """Its turns: searches, perhaps opened pages, and the answer."""
    titles: Sequence[str]
    """Titles of the gold pages, in reading order."""
    found: str | None
    """What the first page gives, where it is not the answer; None where the question does not go on from it."""
    checked: str
    """Name by which the answer can be searched for again."""

    @property
    def searches(self) -> list[int]:
        """Places of the searches among the turns."""
        return [place for place, turn in enumerate(self.turns) if turn.startswith(SEARCH)]


def verification(shown: Occasion) -> Turns:
    """Information verification: before the answer, it is searched for once more."""
    *before, answer = shown.turns
    return (*before, f"<think> I check this before I answer.</think>{SEARCH} {shown.checked}</search>", answer)


def authority(shown: Occasion) -> Turns:
    """Authority evaluation: of the pages of a search, the one about the name itself is trusted."""
    turns = list(shown.turns)
    for place, title in zip(shown.searches, shown.titles, strict=False):
        turns[place + 1] = f"<think> The page {title} is about this itself: I trust it most.</think>{turns[place + 1]}"
    return tuple(turns)


def adaptation(shown: Occasion) -> Turns:
    """Adaptive search: the whole question is searched for first, then a name in it."""
    first, *rest = shown.turns
    return (
        f"{SEARCH} {shown.question}</search>",
        f"<think> That asks too much at once: I search for one name.</think>{first}",
        *rest,
    )


def recovery(shown: Occasion) -> Turns | None:
    """Error recovery: what the first page gives is taken for the answer, and the mistake is noticed."""
    if shown.found is None or len(shown.searches) < 2:
        return None
    turns, place = list(shown.turns), shown.searches[1]
    wrong = f"<think> The answer is {shown.found}. No, this is only a step: the question asks for more.</think>"
    turns[place] = wrong + turns[place]
    return tuple(turns)


WRITERS: Final[Mapping[str, Callable[[Occasion], Turns | None]]] = {
    write.__name__: write for write in (verification, authority, adaptation, recovery)
}
"""Behaviours by name; each returns the turns that show it, or None if a question gives no occasion for it."""
