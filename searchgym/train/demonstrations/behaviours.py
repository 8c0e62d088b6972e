"""Behaviours of a good searcher, written into the oracle's demonstrations before reinforcement learning.

Source: Behavior Priming (repository cxcscmu/Behavior_Priming_For_Agentic_Search; known by a summary): trajectories that
show four behaviours are learnt whatever their final answer, then ordinary reinforcement learning follows.
Deviation: its trajectories come from a large model that reasons freely and are chosen by a judge; here the oracle
writes each behaviour by a fixed sentence and a real search, so that any corpus will do and a small model can learn it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from searchgym.train.demonstrations.play import Demonstration

Turns = tuple[str, ...]
SEARCH: Final = "<search>"


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """What a demonstration says, in parts."""

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


def verification(path: Path) -> Turns:
    """Information verification: before the answer, it is searched for once more."""
    *before, answer = path.turns
    return (*before, f"<think> I check this before I answer.</think>{SEARCH} {path.checked}</search>", answer)


def authority(path: Path) -> Turns:
    """Authority evaluation: of the pages of a search, the one about the name itself is trusted."""
    turns = list(path.turns)
    for place, title in zip(path.searches, path.titles, strict=False):
        turns[place + 1] = f"<think> The page {title} is about this itself: I trust it most.</think>{turns[place + 1]}"
    return tuple(turns)


def adaptation(path: Path, asked: str) -> Turns:
    """Adaptive search: the whole question is searched for first, then a name in it."""
    first, *rest = path.turns
    return (
        f"{SEARCH} {asked}</search>",
        f"<think> That asks too much at once: I search for one name.</think>{first}",
        *rest,
    )


def recovery(path: Path) -> Turns | None:
    """Error recovery: what the first page gives is taken for the answer, and the mistake is noticed."""
    if path.found is None or len(path.searches) < 2:
        return None
    turns, place = list(path.turns), path.searches[1]
    wrong = f"<think> The answer is {path.found}. No, this is only a step: the question asks for more.</think>"
    turns[place] = wrong + turns[place]
    return tuple(turns)


WRITERS: Final[Mapping[str, Callable[[Path, str], Turns | None]]] = {
    "verification": lambda path, asked: verification(path),
    "authority": lambda path, asked: authority(path),
    "adaptation": adaptation,
    "recovery": lambda path, asked: recovery(path),
}
"""Behaviours by name; each takes a demonstration's parts and the question's text."""


def primed(shown: Demonstration, path: Path, behaviour: str) -> Demonstration | None:
    """Returns a demonstration that shows a behaviour; None if its question gives no occasion for it."""
    turns = WRITERS[behaviour](path, shown.question.text)
    return None if turns is None else dataclasses.replace(shown, turns=turns)
