"""Buffer of right attempts at hard questions, which join the group when such a question is asked again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from searchgym.records import Episode
from searchgym.train.curriculum.starts import stored_episodes

HARD: Final = 0.25
"""Greatest share of right attempts with which a question is hard."""
RIGHT: Final = 1.0
"""Least reward of a right attempt."""


class SolvedPool:
    """The last right attempt at each question that was solved but remains hard.

    Source: DeepSearch, arXiv 2509.25454, its replay buffer: a hard question with a cached solution is asked directly,
    without a tree, and the solution is one of its attempts. Deviation: hardness is measured by the step's own attempts,
    not by four attempts after each round.
    """

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}
        """Right attempt by question id."""

    def learn(self, episodes: Iterable[Episode]) -> None:
        """Takes up the right attempts of a step, and drops questions that are no longer hard.

        Args:
            episodes: All episodes of the step.
        """
        groups: dict[str, list[Episode]] = {}
        for episode in episodes:
            if episode.replayed < len(episode.calls) and episode.stop_reason != "retriever_error":
                groups.setdefault(episode.question_id, []).append(episode)
        for question, group in groups.items():
            right = [episode for episode in group if episode.reward >= RIGHT]
            if len(right) > HARD * len(group):
                self.episodes.pop(question, None)
            elif right:
                self.episodes[question] = right[0]

    def state(self) -> list[str]:
        """Returns the ids of the episodes."""
        return [episode.id for episode in self.episodes.values()]

    def restore(self, state: Sequence[str], episodes: Iterable[Episode]) -> None:
        """Restores a state that `state` returned.

        Args:
            state: The state.
            episodes: Episodes of the run, among which the buffer's are.

        Raises:
            DataError: An episode is missing.
        """
        stored = stored_episodes(state, episodes, "a solution of a hard question")
        self.episodes = {stored[id].question_id: stored[id] for id in state}
