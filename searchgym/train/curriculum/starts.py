"""Choice of the prefixes of a step's episodes at which groups of the next step begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Interval

from searchgym.errors import DataError
from searchgym.options import Options
from searchgym.records import Call, Episode
from searchgym.train.algorithms.samples import Sample

LEAST_STD, LEAST_REWARD, DECAY = 0.05, 0.9, 0.95
"""Rules of ``best``: least standard deviation of a question's rewards, least reward of its best attempt, and the factor
by which the chance of a cut falls with each turn."""
Chosen = tuple[Episode, int]
"""An episode, and the number of its turns to repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions(Options):
    """Groups of a step that begin at a prefix of an episode of the step before, instead of at a question."""

    share: Annotated[float, Interval(gt=0, lt=1)]
    """Share of the groups of a step that begin so, from the second step on."""
    by: Literal["variance", "best", "entropy", "value"] = "variance"
    """Which prefixes: of the questions whose rewards vary most, cut anywhere (``variance``); the same, but of the best
    attempt, if it is right (``best``); before the turn whose tokens were least likely (``entropy``); before the turn in
    which the critic's value falls most (``value``)."""
    replayed: bool = False
    """If true, the tokens of the prefix are trained on again, with their log-probs of then; else they are context."""


class StartPool:
    """Prefixes of a step's episodes at which groups of the next step begin.

    At most one prefix of a question is chosen. It has at least one turn, and leaves at least one to the model. Source
    of ``entropy``: ARPO (arXiv 2507.19849, section 3.1) branches where the entropy after a search is high; of ``best``:
    ReST-RL (arXiv 2508.19576) and its released code, there for lines of programs; the other two rules are ours.
    Deviation: entropy is estimated by the sampled tokens' negative log-probs.

    Args:
        options: Options of the recipe.
        questions: Number of groups per step.
        seed: Seed of the run.
    """

    def __init__(self, options: StartOptions, questions: int, seed: int) -> None:
        self.options, self._seed = options, seed
        self.count = round(options.share * questions)
        self.chosen: list[Chosen] = []
        """Prefixes at which the next step's groups begin."""

    def learn(self, step: int, episodes: Sequence[Episode], samples: Sequence[Sample] = ()) -> None:
        """Chooses the prefixes of the next step from a step's episodes.

        Args:
            step: 0-based step of the episodes.
            episodes: All episodes of the step.
            samples: Samples with values, for the rule ``value``.
        """
        rng = np.random.default_rng([self._seed, step, 64])
        groups: dict[str, list[Episode]] = {}
        for episode in episodes:
            if episode.replays is None and episode.stop_reason != "retriever_error":
                groups.setdefault(episode.question_id, []).append(episode)
        scored, values = [], first_values(samples) if self.options.by == "value" else {}
        for group in groups.values():
            longer = [episode for episode in group if episode.turns > 1]
            if not longer:
                continue
            if self.options.by == "variance":
                episode = longer[int(rng.integers(len(longer)))]
                best = (float(np.var([e.reward for e in group])), (episode, int(rng.integers(1, episode.turns))))
            elif self.options.by == "best":
                episode, rewards = max(longer, key=lambda e: e.reward), [e.reward for e in group]
                if np.std(rewards) < LEAST_STD or episode.reward < LEAST_REWARD:
                    continue
                cuts = np.arange(1, episode.turns)
                chances = DECAY ** (cuts - 1)
                turns = int(rng.choice(cuts, p=chances / chances.sum()))
                best = (float(np.var(rewards)), (episode, turns))
            else:
                ranked = [(score, (e, turns)) for e in longer for turns, score in cut_scores(e, values).items()]
                if not ranked:
                    continue
                best = max(ranked, key=lambda entry: entry[0])
            if best[0] > 0:
                scored.append(best)
        scored.sort(key=lambda entry: -entry[0])
        self.chosen = [chosen for _, chosen in scored[: self.count]]

    def state(self) -> list[list[str | int]]:
        """Returns the chosen prefixes as plain JSON: episode id and number of turns."""
        return [[episode.id, turns] for episode, turns in self.chosen]

    def restore(self, state: Iterable[Sequence[str | int]], episodes: Iterable[Episode]) -> None:
        """Restores a state that `state` returned.

        Args:
            state: The state.
            episodes: Episodes of the run, among which the chosen ones are.

        Raises:
            DataError: An episode is missing.
        """
        turns = {str(id): int(number) for id, number in state}
        stored = stored_episodes(turns, episodes, "at which a group of the next step begins")
        self.chosen = [(stored[id], number) for id, number in turns.items()]


def stored_episodes(ids: Iterable[str], episodes: Iterable[Episode], what: str) -> dict[str, Episode]:
    """Returns episodes of a run by id, or raises a DataError that says what a missing one is."""
    needed = set(ids)
    stored = {episode.id: episode for episode in episodes if episode.id in needed} if needed else {}
    if missing := sorted(needed - stored.keys()):
        raise DataError(f"episodes.jsonl lacks {missing[0]}, {what}")
    return stored


def first_values(samples: Sequence[Sample]) -> Mapping[str, float]:
    """Returns the critic's value at the first token of each call, by call id."""
    return {
        name: float(sample.value[call.start])
        for sample in samples
        if sample.value is not None
        for call, name in zip(sample.calls, sample.call_ids, strict=True)
    }


def cut_scores(episode: Episode, values: Mapping[str, float]) -> dict[int, float]:
    """Returns a score for each number of turns after which an episode can be cut.

    With values it is the fall of the value over the next turn's first call, else the mean negative log-prob of the next
    turn's tokens.
    """
    calls = {turn: _calls(episode, turn + 1) for turn in range(1, episode.turns)}
    if not values:
        return {turn: surprise(episode, turn + 1) for turn, of in calls.items() if of}
    scores: dict[int, float] = {}
    for turn, of in calls.items():
        if not of:
            continue
        now = values.get(f"{episode.id}/{of[0][0]}")
        later = _calls(episode, turn + 2)
        after = values.get(f"{episode.id}/{later[0][0]}") if later else episode.reward
        if now is not None and after is not None:
            scores[turn] = now - after
    return scores


def _calls(episode: Episode, turn: int) -> list[tuple[int, Call]]:
    """Returns the calls of a turn, each with its index."""
    return [(index, call) for index, call in enumerate(episode.calls) if call.turn == turn and not call.prefix]


def surprise(episode: Episode, turn: int) -> float:
    """Returns the mean negative log-prob of the tokens of a turn's calls, in nats."""
    parts = []
    for _, call in _calls(episode, turn):
        spans = episode.tokens(call.context)
        logp = np.concatenate([np.zeros(len(s.ids), np.float32) if s.logp is None else s.logp for s in spans])
        parts.append(-logp[call.start : call.end])
    return float(np.concatenate(parts).mean())
