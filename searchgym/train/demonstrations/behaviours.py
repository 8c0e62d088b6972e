"""Behaviours of a good searcher, added to the oracle's demonstrations for training before reinforcement learning.

Source: Behavior Priming (repository cxcscmu/Behavior_Priming_For_Agentic_Search; read in a summary only): trajectories
with four behaviours are learnt, whether their answers are right or not, before ordinary reinforcement learning.
Deviation: its trajectories come from a large model that reasons freely and are selected by a judge; here the oracle
writes each behaviour as a fixed sentence and a real search, so that it works with any corpus and a small model can
learn it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Turns = tuple[str, ...]
SEARCH: Final = "<search>"


@dataclass(frozen=True, slots=True)
class Occasion:
    """A demonstration, with the facts that its behaviours may mention."""

    question: str
    """Text of the question."""
    turns: Turns
    """Turns of the demonstration: searches, opened pages (if any), and the answer."""
    titles: Sequence[str]
    """Titles of the gold pages, in reading order."""
    first_answer: str | None
    """Intermediate answer on the first page; None if the question does not continue from it."""
    checked: str
    """Name to search for when the answer is verified."""

    @property
    def searches(self) -> list[int]:
        """Indices of the turns that search."""
        return [index for index, turn in enumerate(self.turns) if turn.startswith(SEARCH)]


def verification(occasion: Occasion) -> Turns:
    """Adds information verification: one more search before the answer, for the answer itself."""
    *before, answer = occasion.turns
    return (*before, f"<think> I check this before I answer.</think>{SEARCH} {occasion.checked}</search>", answer)


def authority(occasion: Occasion) -> Turns:
    """Adds authority evaluation: after each search, a thought trusts the page about the searched name most."""
    turns = list(occasion.turns)
    for index, title in zip(occasion.searches, occasion.titles, strict=False):
        turns[index + 1] = f"<think> The page {title} is about this itself: I trust it most.</think>{turns[index + 1]}"
    return tuple(turns)


def adaptation(occasion: Occasion) -> Turns:
    """Adds adaptive search: a first search for the whole question, then the search for a name in it."""
    first, *rest = occasion.turns
    return (
        f"{SEARCH} {occasion.question}</search>",
        f"<think> That asks too much at once: I search for one name.</think>{first}",
        *rest,
    )


def recovery(occasion: Occasion) -> Turns | None:
    """Adds error recovery: a thought mistakes the intermediate answer for the final one and corrects itself."""
    if occasion.first_answer is None or len(occasion.searches) < 2:
        return None
    turns, index = list(occasion.turns), occasion.searches[1]
    wrong = (
        f"<think> The answer is {occasion.first_answer}. No, this is only a step: the question asks for more.</think>"
    )
    turns[index] = wrong + turns[index]
    return tuple(turns)


def judgement(occasion: Occasion) -> Turns:
    """Adds a judgement of each search (ReSeek); the first search is made twice, and judged useless the second time."""
    turns, searches = list(occasion.turns), occasion.searches
    for index in searches:
        turns[index + 1] = f"<judge>Yes</judge>{turns[index + 1]}"
    first, following = turns[searches[0]], searches[0] + 1
    again = turns[following].replace("<judge>Yes</judge>", "<judge>No</judge>", 1)
    return (*turns[:following], f"<judge>Yes</judge>{first}", again, *turns[following + 1 :])


WRITERS: Final[Mapping[str, Callable[[Occasion], Turns | None]]] = {
    write.__name__: write for write in (verification, authority, adaptation, recovery, judgement)
}
"""Behaviours by name; each returns turns with the behaviour, or None if it does not apply to the question."""
