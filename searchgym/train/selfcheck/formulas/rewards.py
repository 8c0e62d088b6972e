"""The rewards of calls a second time, and which calls continue each other, written from their definitions.

Nothing here is shared with `searchgym.train.algorithms`: a fault there must not repeat itself in what it is compared
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from searchgym.records import Call, Episode
from searchgym.rollout.sampler import Sampled, SampleRequest
from searchgym.train.selfcheck.formulas.terms import TERMS, Case, Floats, Score

WRITTEN = {"outcome", "format", "overlong", "costs", "difference", "gain", "praise", *TERMS}
"""Credit terms that are written a second time here. The others ask a judge, or are a user's own."""


def call_rewards(case: Case, penalties: Mapping[str, float]) -> list[tuple[float, float]]:
    """Returns (reward, part of it that no earlier call has a share in) of each call of an episode.

    The reward is the sum of the credit terms, all of them in `WRITTEN`, each with its weight and for its roles.

    Args:
        case: A finished episode and what its terms look at.
        penalties: Penalty of each role for an illegal output.
    """
    episode, score, acting, lasts = case.episode, case.score, case.acting, case.lasts
    calls, terms = episode.calls, case.terms
    proposing = [i for i in acting if calls[i].answer is not None]
    scores = {}
    if {"difference", "gain"} & set(terms):
        scores = {i: score(episode, calls[i].answer or "") for i in proposing}
    made = {name: np.zeros(len(calls)) for name in terms}
    if "outcome" in made:
        mine = [i for i in lasts if calls[i].role in (terms["outcome"].roles or [calls[i].role])]
        made["outcome"][lasts] = episode.reward / (len(mine) if terms["outcome"].split and mine else 1)
    if "format" in made:
        made["format"][:] = [0.0 if call.legal else penalties.get(call.role, 0.0) for call in calls]
    if "overlong" in made:
        made["overlong"][lasts] = [_too_long(episode, own, terms["overlong"]) for own in case.sets]
    if "costs" in made:
        costs = terms["costs"]
        rounds = min(max(episode.notes.get("rounds", episode.turns) - 1, 0), 3)
        made["costs"][acting] = -(costs.turn * rounds + costs.search * min(len(episode.searches), 3)) / 3
    if "difference" in made:
        made["difference"][acting] = [_difference(i, scores) for i in acting]
    if "gain" in made:
        made["gain"][proposing] = np.diff([scores[i] for i in proposing], prepend=0.0)
    if "praise" in made:
        made["praise"] = _praise(episode, acting, terms["praise"].alpha, score)
    made |= {name: TERMS[name](case) for name in terms if name in TERMS}
    pairs = []
    for i, call in enumerate(calls):
        parts = {n: t.weight * float(made[n][i]) for n, t in terms.items() if call.role in (t.roles or [call.role])}
        pairs.append((sum(parts.values()), parts.get("format", 0.0) + parts.get("overlong", 0.0)))
    return pairs


def _too_long(episode: Episode, calls: Sequence[int], term: Any) -> float:
    """Returns DAPO's deduction for the tokens that a model wrote in a sequence."""
    written = sum(episode.calls[i].end - episode.calls[i].start for i in calls)
    beyond = written - (term.limit - term.cache)
    return 0.0 if beyond <= 0 else -min(beyond / term.cache, 1.0)


def _difference(call: int, scores: Mapping[int, float]) -> float:
    """Returns a call's reward from the scores of the calls that propose answers."""
    if call in scores:
        return scores[call]
    earlier = [value for proposal, value in scores.items() if proposal < call]
    later = [value for proposal, value in scores.items() if proposal > call]
    return later[0] - (earlier[-1] if earlier else 0.0) if later else 0.0


def _praise(episode: Episode, acting: Sequence[int], alpha: float, score: Score) -> Floats:
    """Returns the rewards of trial answers, and of the last call before each of them but the first."""
    total, trials = np.zeros(len(episode.calls)), [i for i, call in enumerate(episode.calls) if call.prefix]
    total[trials] = values = [score(episode, episode.calls[i].answer or "") for i in trials]
    for t in range(1, len(trials)):
        between = [i for i in acting if trials[t - 1] < i < trials[t]]
        total[between[-1:]] += alpha * (values[t] - values[t - 1])
    return total


def continued(calls: Sequence[Call], ends: Mapping[int, bytes], starts: Mapping[int, bytes]) -> list[list[int]]:
    """Groups an episode's calls into training sequences, by what their models were asked.

    A call goes on with the sequence of the latest call whose prompt and response its own prompt begins with, unless
    another call went on with it before. Trial answers open a sequence of their own, which no call goes on with.

    Args:
        calls: The calls of an episode.
        ends: Prompt and response of each call that has tokens, as bytes, by the call's index.
        starts: Prompt of each such call, as bytes.
    """
    sequences: list[list[int]] = []
    taken: set[int] = set()
    for i in sorted(starts, key=lambda i: (calls[i].context, i)):
        seen = [j for j in ends if j != i and not calls[j].prefix and starts[i].startswith(ends[j])]
        parent = max(seen, key=lambda j: len(ends[j]), default=None)
        if parent is None or parent in taken or calls[i].prefix:
            sequences.append([i])
            continue
        taken.add(parent)
        next(row for row in sequences if parent in row).append(i)
    return sequences


def sequences(episode: Episode, exchanges: Sequence[tuple[SampleRequest, Sampled]]) -> list[list[int]]:
    """Returns the calls that continue each other, by what the models of an episode were asked and replied."""
    starts: dict[int, bytes] = {}
    ends: dict[int, bytes] = {}
    left = [(request.ids.tobytes(), reply.ids.tobytes()) for request, reply in exchanges]
    for i, call in enumerate(episode.calls):
        if call.end > call.start:
            ids = np.concatenate([span.ids for span in episode.tokens(call.context)])
            pair = (ids[: call.start].tobytes(), ids[call.start : call.end].tobytes())
            left.remove(pair)
            starts[i], ends[i] = pair[0], pair[0] + pair[1]
    return continued(episode.calls, ends, starts)
