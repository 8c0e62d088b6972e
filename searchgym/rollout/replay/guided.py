"""Attempts at test time that a value model guides: each begins at the most promising turn of the earlier ones."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.records import Episode, Question
from searchgym.rollout.replay.prefix import Start
from searchgym.scoring.selection import VALUE

EXPLORATION: Final = 0.2
"""Weight of the bonus for turns from which few attempts went on."""
Turns = tuple[tuple[int, str], ...]
"""Calls of the first turns of an episode: number of the turn and text."""


@dataclass(frozen=True, slots=True)
class EpisodeValues:
    """A critic's values in an episode."""

    before: tuple[float, ...]
    """Value before each call: of its first token; ``-inf`` if it has none."""
    end: float
    """Value of the whole episode: of the last token that a model wrote."""


class Guide:
    """Values the attempts at questions and, as a tree search, chooses where further ones begin.

    The state after t turns of an attempt has the score ``V + c sqrt((1 + ln N') / (0.1 + N))``: V is its value before
    the next call, N the number of attempts whose first t turns are the same, N' that of the state one turn before. The
    next attempt at a question begins at the state with the highest score; at the question if that is the first one.

    Source: value-guided tree search of ReST-RL, arXiv 2508.19576, and its released code. Deviations: a state is a turn,
    not a line; the best state is chosen among all at once, not by descent from the root; and every attempt runs to its
    end, so its value is that of its last token.

    Args:
        value: Returns the values of an episode.
        forks: If False, all attempts begin at the question: they are only valued.
        exploration: The weight c.
    """

    def __init__(
        self, value: Callable[[Episode], EpisodeValues], forks: bool, exploration: float = EXPLORATION
    ) -> None:
        self.value, self.forks, self.exploration = value, forks, exploration
        self._attempts: defaultdict[str, list[tuple[Episode, EpisodeValues]]] = defaultdict(list)
        self._numbers = dict[str, int]()
        """Number of the attempt at each question that runs."""

    def add(self, episode: Episode) -> None:
        """Adds an attempt: gives it its number and notes its value in it; an episode without calls has none."""
        episode.attempt = self._numbers.get(episode.question_id, episode.attempt)
        episode.id = f"{episode.question_id}#{episode.attempt}"
        if not episode.calls:
            return
        values = self.value(episode)
        episode.notes[VALUE] = values.end
        if episode.stop_reason != "retriever_error":
            self._attempts[episode.question_id].append((episode, values))

    def rounds(self, todo: Sequence[tuple[Question, int]]) -> Iterator[list[tuple[Question, int] | Start]]:
        """Yields what to run, one attempt at each question at a time; all of it at once without forks.

        Args:
            todo: Questions, and numbers of their attempts that are missing.
        """
        if not self.forks:
            yield list(todo)
            return
        for attempt in sorted({number for _, number in todo}):
            questions = [question for question, number in todo if number == attempt]
            self._numbers = dict.fromkeys((question.id for question in questions), attempt)
            yield [self._start(question, attempt) or (question, attempt) for question in questions]

    def _start(self, question: Question, attempt: int) -> Start | None:
        """Returns where an attempt at a question begins; None: at the question."""
        attempts = self._attempts[question.id]
        passed = Counter(turns for episode, _ in attempts for turns in _states(episode))
        best, chosen = -math.inf, None
        for episode, values in attempts:
            states = _states(episode)
            for count, state in enumerate(states):
                before = passed[states[max(count - 1, 0)]]
                bonus = math.sqrt((1 + math.log(before)) / (0.1 + passed[state]))
                first = next(index for index, call in enumerate(episode.calls) if call.turn > count)
                score = values.before[first] + self.exploration * bonus
                if score > best:
                    best, chosen = score, (episode, count)
        return Start(*chosen, attempt) if chosen is not None and chosen[1] else None


def _states(episode: Episode) -> list[Turns]:
    """Returns the first t turns of an episode, for each t after which a model was called."""
    calls = [(call.turn, call.text) for call in episode.calls]
    last = max(turn for turn, _ in calls)
    return [tuple(call for call in calls if call[0] <= turns) for turns in range(min(last, episode.turns))]
