"""Credit terms that ask a judge: rubrics, a gate, tournaments within a group, and sets of candidate answers.

Each gives its reward to the last call of each of an episode's sequences. An episode for which the judge gave no verdict
gets none: `UnjudgedError` names it, and it leaves the training like one whose retriever failed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from searchgym.errors import NoVerdictError
from searchgym.judging.rubric import (
    best_of_candidates,
    gated,
    parts_of,
    rubric_of,
    rubric_score,
    weightings,
)
from searchgym.judging.tournament import tournament
from searchgym.records import Episode
from searchgym.train.algorithms.samples import sequences_of
from searchgym.train.credit.context import CreditContext, Rows


class UnjudgedError(NoVerdictError):
    """Raised when a judge gave no verdict on some episodes of a group.

    Args:
        places: Indices of these episodes in the group.
        why: What the judge did on the first of them.
    """

    def __init__(self, places: Sequence[int], why: str) -> None:
        self.places = tuple(places)
        super().__init__(why)


def rubric(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards an episode by the share of its question's rubric that the answer passes, in [0, 1].

    Source: DR-Rubric, arXiv 2606.01091; see `searchgym.judging.rubric.weighted_share`.
    """
    return _each(group, lambda episode: rubric_score(context.judge, context.question(episode), _text(episode)))


def gate(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards an episode by its rubric behind a gate of bottom lines, in [0, 1]; see `searchgym.judging.rubric.gated`.

    Bottom lines are the criteria with ``bottom: true`` and the share of the episode's calls that were legal.

    Source: SearchLLM, arXiv 2603.10473.
    """

    def score(episode: Episode) -> float:
        question = context.question(episode)
        criteria = rubric_of(question)
        passed = context.judge.passes(question.text, _text(episode), criteria)
        legal = sum(call.legal for call in episode.calls) / max(len(episode.calls), 1)
        return gated(passed, criteria, legal, context.options.gate_delta)

    return _each(group, score)


def tournaments(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards an episode by the matches that its answer wins against others of its group, in [0, 1].

    Source: Tournament-GRPO; see `searchgym.judging.tournament.tournament`.
    """
    question = context.question(group[0])
    rng = np.random.default_rng(zlib.crc32((group[0].group_uid or question.id).encode("utf-8", "surrogatepass")))
    rounds, answers = context.options.tournament_rounds, [_text(episode) for episode in group]
    scores = tournament(context.judge, question.text, answers, rubric_of(question), rounds, rng).scores
    if silent := [place for place, score in enumerate(scores) if score is None]:
        why = f"episode {group[silent[0]].id}: the judge gave no verdict in any match of its answer"
        raise UnjudgedError(silent, why)
    return [_at_ends(episode, score or 0.0) for episode, score in zip(group, scores, strict=True)]


def candidates(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards an episode whose answer gives several candidates by how well the set covers its rubric, in [0, 1].

    Each candidate has a vector of 1 for the criteria that it passes and 0 for the others; the reward is the mean over
    weightings of the criteria of the best candidate's weighted sum. The weightings are the same for every attempt at a
    question. An answer of more than `CreditOptions.candidates` candidates gets 0.

    Source: VPO, arXiv 2605.22817; see `searchgym.judging.rubric.best_of_candidates`. That criteria are the components
    of a reward, and the limit, are ours.
    """
    options = context.options

    def score(episode: Episode) -> float:
        question = context.question(episode)
        criteria, parts = rubric_of(question), parts_of(_text(episode))
        if not 1 <= len(parts) <= options.candidates:
            return 0.0
        rows = [context.judge.passes(question.text, part, criteria) for part in parts]
        return best_of_candidates(np.array(rows, np.float64), weightings(question.id, len(criteria), options.draws))

    return _each(group, score)


def _each(group: Sequence[Episode], score: Callable[[Episode], float]) -> Rows:
    """Returns the rows of a term that scores each episode alone."""
    rows, places, why = list[list[float]](), list[int](), ""
    for place, episode in enumerate(group):
        try:
            rows.append(_at_ends(episode, score(episode)))
        except NoVerdictError as error:
            places.append(place)
            why = why or f"episode {episode.id}: {error}"
    if places:
        raise UnjudgedError(places, why)
    return rows


def _at_ends(episode: Episode, reward: float) -> list[float]:
    """Returns a reward on the last call of each of an episode's sequences, and 0 on the others."""
    rewards = [0.0] * len(episode.calls)
    for calls in sequences_of(episode):
        rewards[calls[-1]] = reward
    return rewards


def _text(episode: Episode) -> str:
    """Returns the answer of an episode, empty without one."""
    return "" if episode.answer is None else episode.answer.text
