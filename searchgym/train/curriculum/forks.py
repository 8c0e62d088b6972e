"""Forks: attempts that begin at a turn of another attempt at the same question, so that a group is a tree."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from searchgym.options import Options
from searchgym.records import Episode
from searchgym.rollout.replay.prefix import Start
from searchgym.train.curriculum.starts import cut_scores, surprise

Values = Callable[[Sequence[Episode]], Mapping[str, float]]
"""Function that returns the critic's value at the first token of each call of some episodes, by call id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions(Options):
    """Groups that are trees: some attempts begin at the question, the others fork from a turn of an earlier one.

    Sources: TreeRL, arXiv 2506.11902, section 3, forks where tokens are least likely; ARPO, arXiv 2507.19849, after
    searches. Deviation: attempts fork at turns alone, where the environment has replied.
    """

    roots: Annotated[int, Ge(1)] = 2
    """Attempts that begin at the question; the rest of `RolloutOptions.attempts` are forks."""
    rounds: Annotated[int, Ge(1)] = 1
    """Number of rounds with as many forks each. Forks of later rounds can begin at those of earlier ones."""
    branches: Annotated[int, Ge(1)] = 1
    """Number of forks that begin at a chosen turn."""
    by: Literal["entropy", "value", "frontier", "random"] = "entropy"
    """Which turns: before the one whose tokens were least likely (``entropy``); before the one in which the critic's
    value falls most (``value``); after the one with the highest frontier score (``frontier``, see `frontier_scores`);
    any (``random``, the control)."""
    tokens: Annotated[int, Ge(1)] | None = None
    """Number of generated tokens of a question after which no further round forks from it. Default: no limit."""
    replayed: bool = True
    """If true, forks train on the tokens of the turns that they repeat, as TreeRL does, whose advantages divide by the
    number of attempts through a call; else only the first attempt through a call does."""
    solved: bool = False
    """If true, a hard question that was solved before is asked without forks: its solution is one of the attempts, the
    others begin at the question (DeepSearch's replay buffer, see `SolvedPool`)."""

    def per_round(self, attempts: int) -> int:
        """Returns the number of turns that are chosen in each round for a question."""
        return (attempts - self.roots) // (self.rounds * self.branches)


class Tree:
    """The attempts at one question, of which some are forks of others."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._repeated: dict[str, int] = {}
        """Number of turns that each episode repeats of another one, by id."""
        self._forks: Counter[tuple[str, int]] = Counter()
        """Number of forks that begin after a turn of an episode."""

    @property
    def tokens(self) -> int:
        """Number of tokens that models generated, each once."""
        return sum(episode.generated_tokens() for episode in self.episodes)

    @property
    def question(self) -> str:
        """Id of the question."""
        return self.episodes[0].question_id

    def add(self, episode: Episode, repeated: int = 0) -> None:
        """Adds an attempt that repeats a number of turns of an earlier one, and gives it the next free number."""
        if self.episodes:
            root = self.episodes[0]
            episode.attempt, episode.group_uid = len(self.episodes), root.group_uid
            episode.id = f"{root.question_id}#{episode.attempt}@{root.id.rpartition('@')[2]}"
        self._repeated[episode.id] = repeated
        self.episodes.append(episode)

    def again(self, solution: Episode, count: int) -> list[Start]:
        """Returns the beginnings of attempts at a question that was solved before: its solution, then new attempts."""
        return [Start(solution, solution.turns), *(Start(self.episodes[0], 0, branch) for branch in range(count - 1))]

    def choose(
        self, options: TreeOptions, turns: int, rng: np.random.Generator, values: Mapping[str, float]
    ) -> list[Start]:
        """Returns the beginnings of a round's forks.

        Of all turns that an attempt does not repeat, those at which fewer forks have begun go first, then those with
        the higher score. If no attempt has a second turn, forks begin at the question.

        Args:
            options: How many forks a turn gets, and which turns are chosen.
            turns: Number of turns to choose.
            rng: Random generator, for ``random``.
            values: The critic's values, for ``value``.
        """
        scores: dict[tuple[str, int], float] = {}
        for episode in (each for each in self.episodes if each.stop_reason != "retriever_error"):
            frontier = options.by == "frontier"
            by_turn = frontier_scores(episode, self.episodes) if frontier else cut_scores(episode, values)
            for turn, score in by_turn.items():
                if turn > self._repeated[episode.id]:
                    scores[episode.id, turn] = float(rng.random()) if options.by == "random" else score
        scores = scores or {(self.episodes[0].id, 0): 0.0}
        by_id, starts = {episode.id: episode for episode in self.episodes}, list[Start]()
        for _ in range(turns):
            id, turn = min(scores, key=lambda cut: (self._forks[cut], -scores[cut]))
            for _ in range(options.branches):
                starts.append(Start(by_id[id], turn, self._forks[id, turn]))
                self._forks[id, turn] += 1
        return starts


def frontier_scores(episode: Episode, group: Sequence[Episode]) -> dict[int, float]:
    """Returns a score for each number of turns after which an episode can be forked.

    It is ``tanh Q(t - 1) + tanh Q(t) + H(t) + sqrt(t / T)``: Q(t) is the mean of ``2 r - 1`` over the attempts whose
    first t turns are the same text, H(t) the mean negative log-prob of turn t's tokens, T the most turns of an attempt.

    Source: DeepSearch, arXiv 2509.25454, and its released code; its weights of the four parts are not in it, here they
    are 1.
    """
    texts = [[(call.turn, call.text) for call in other.calls if not call.prefix] for other in group]
    mine = [(call.turn, call.text) for call in episode.calls if not call.prefix]

    def value(turns: int) -> float:
        begun = [entry for entry in mine if entry[0] <= turns]
        same = [[entry for entry in row if entry[0] <= turns] == begun for row in texts]
        return float(np.mean([2 * other.reward - 1 for other, alike in zip(group, same, strict=True) if alike]))

    longest = max(other.turns for other in group)
    return {
        turn: math.tanh(value(turn - 1)) + math.tanh(value(turn)) + surprise(episode, turn) + math.sqrt(turn / longest)
        for turn in range(1, episode.turns)
        if any(number == turn for number, _ in mine)
    }


def grow(
    roots: Sequence[Episode],
    options: TreeOptions,
    attempts: int,
    rng: np.random.Generator,
    run: Callable[[Sequence[Start]], Sequence[Episode]],
    values: Values | None = None,
    solved: Mapping[str, Episode] | None = None,
) -> list[Episode]:
    """Runs the forks of a step.

    Args:
        roots: Attempts that begin at questions, of all questions, in the order of their attempts.
        options: Options of the trees.
        attempts: Attempts per question, roots included.
        rng: Random generator of the step.
        run: Runs episodes that begin at prefixes, and returns them in order.
        values: Computes the critic's values, for ``by: value``.
        solved: Right attempt at hard questions of earlier steps, by question id, for ``solved``.

    Returns:
        All attempts, by question.
    """
    solved = solved or {}
    trees: defaultdict[str, Tree] = defaultdict(Tree)
    for episode in roots:
        trees[episode.question_id].add(episode)
    again = [tree for question, tree in trees.items() if question in solved]
    _add(again, [tree.again(solved[tree.question], attempts - options.roots) for tree in again], run)
    for _ in range(options.rounds):
        growing = [t for t in trees.values() if t.question not in solved and t.tokens < (options.tokens or math.inf)]
        by_call = {} if values is None else values([episode for tree in growing for episode in tree.episodes])
        chosen = [tree.choose(options, options.per_round(attempts), rng, by_call) for tree in growing]
        _add(growing, chosen, run)
    return [episode for tree in trees.values() for episode in tree.episodes]


def _add(
    trees: Sequence[Tree], starts: Sequence[Sequence[Start]], run: Callable[[Sequence[Start]], Sequence[Episode]]
) -> None:
    """Runs forks of trees, all at once, and adds them.

    Args:
        trees: The trees.
        starts: The beginnings of each tree's forks.
        run: Runs episodes that begin at prefixes, and returns them in order.
    """
    forks = iter(run([start for of_tree in starts for start in of_tree]))
    for tree, of_tree in zip(trees, starts, strict=True):
        for start in of_tree:
            tree.add(next(forks), start.turns)
