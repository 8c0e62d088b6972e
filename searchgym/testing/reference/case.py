"""An episode to reward, with everything that the second implementation of the credit terms reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.records import Episode, Question

Floats = npt.NDArray[np.float64]
Score = Callable[[Episode, str], float]
"""Function from an episode and an answer text to the environment's reward for that answer."""


@dataclass(frozen=True, slots=True)
class Case:
    """An episode to reward, with everything that its credit terms read."""

    episode: Episode
    sequences: Sequence[Sequence[int]]
    """Training sequences of the episode: indices of calls that continue each other."""
    question: Question
    peers: Sequence[Episode]
    """All attempts at the question whose retriever worked, including this one."""
    named: tuple[Collection[str], Collection[str]]
    """Names of the environment's entities, and words that are no names; see `names_of`."""
    terms: Mapping[str, Any]
    """Options of each credit term, by its name."""
    score: Score
    penalties: Mapping[str, float] = field(default_factory=dict)
    """Penalty of each role for an illegal output."""

    @property
    def proposals(self) -> dict[int, float]:
        """Scores of the answers that acting calls propose, by the call's index."""
        calls = self.episode.calls
        return {i: self.score(self.episode, text) for i in self.acting if (text := calls[i].answer) is not None}

    @property
    def acting(self) -> list[int]:
        """Indices of the calls other than trial answers."""
        return [i for i, call in enumerate(self.episode.calls) if not call.prefix]

    @property
    def sets(self) -> list[list[int]]:
        """Indices of the acting calls of each sequence, without empty sequences."""
        acting = set(self.acting)
        return [indices for sequence in self.sequences if (indices := sorted(acting & set(sequence)))]

    @property
    def lasts(self) -> list[int]:
        """Index of the last acting call of each sequence."""
        return [indices[-1] for indices in self.sets]

    def at_ends(self, value: float) -> Floats:
        """Returns rewards of all calls: a value for the last acting call of each sequence, 0 for the others."""
        rewards = np.zeros(len(self.episode.calls))
        rewards[self.lasts] = value
        return rewards

    @property
    def actions(self) -> int:
        """Number of turns that searched."""
        return len({search.turn for search in self.episode.searches})
