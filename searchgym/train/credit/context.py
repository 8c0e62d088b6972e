"""Interface of credit terms: what a term is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from searchgym.errors import UsageError
from searchgym.judging.judge import Checked
from searchgym.judging.rules import RuleJudge
from searchgym.records import Episode, Question
from searchgym.train.credit.waypoints import Names
from searchgym.train.recipe.options import CreditOptions

Rows = list[list[float]]
"""Rewards of a group: one row per episode, one number per call of the episode."""


def _no_question(episode: Episode) -> Question:
    raise UsageError(f"episode {episode.id}: its question is not at hand, Credit.of loads the questions")


@dataclass(frozen=True, slots=True)
class CreditContext:
    """Inputs of a credit term besides the episodes."""

    options: CreditOptions = field(default_factory=CreditOptions)
    """The recipe's credit options."""
    penalties: Mapping[str, float] = field(default_factory=dict)
    """Penalty of each role for an illegal output, at most 0. Default: none."""
    score: Callable[[Episode, str], float] = lambda episode, text: 0.0
    """Returns the environment's reward for an answer text, had the episode ended with it. Default: always 0."""
    question: Callable[[Episode], Question] = _no_question
    """Returns an episode's question, with its gold answers and what is known of its evidence. Default: an error."""
    names: Callable[[], Names] = lambda: Names(())
    """Returns the names of the entities that the environment's questions are about. Default: none."""
    judge: Checked = field(default_factory=lambda: Checked(RuleJudge()))
    """Judge that terms ask. Default: rules."""


Term = Callable[[Sequence[Episode], CreditContext], Rows]
"""Function from a group of episodes to the rewards of their calls."""
