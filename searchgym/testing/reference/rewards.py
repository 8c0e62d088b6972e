"""The rewards of calls a second time, and which calls continue each other, written from their definitions.

Nothing here is shared with `searchgym.train.credit` and `searchgym.train.algorithms`: a fault there must not repeat
itself in what it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from searchgym.records import Call, Episode
from searchgym.rollout.sampler import Sampled, SampleRequest
from searchgym.testing.reference.terms import FURTHER, Case, Floats


def call_rewards(case: Case) -> list[tuple[float, float]]:
    """Returns (reward, part of it that no earlier call has a share in) of each call of an episode.

    The reward is the sum of the credit terms, all of them in `TERMS`, each with its weight and for its roles.
    """
    made = {name: TERMS[name](case) for name in case.terms}
    pairs = []
    for i, call in enumerate(case.episode.calls):
        mine = {name: term for name, term in case.terms.items() if call.role in (term.roles or [call.role])}
        parts = {name: term.weight * float(made[name][i]) for name, term in mine.items()}
        pairs.append((sum(parts.values()), parts.get("format", 0.0) + parts.get("overlong", 0.0)))
    return pairs


def _outcome(case: Case) -> Floats:
    term, calls = case.terms["outcome"], case.episode.calls
    paid = [i for i in case.lasts if calls[i].role in (term.roles or [calls[i].role])]
    return case.at_ends(case.episode.reward / (len(paid) if term.split and paid else 1))


def _format(case: Case) -> Floats:
    return np.array([0.0 if call.legal else case.penalties.get(call.role, 0.0) for call in case.episode.calls])


def _overlong(case: Case) -> Floats:
    made, term = np.zeros(len(case.episode.calls)), case.terms["overlong"]
    for own in case.sets:
        beyond = sum(case.episode.calls[i].end - case.episode.calls[i].start for i in own) - (term.limit - term.cache)
        made[own[-1]] = -min(beyond / term.cache, 1.0) if beyond > 0 else 0.0
    return made


def _costs(case: Case) -> Floats:
    made, term, episode = np.zeros(len(case.episode.calls)), case.terms["costs"], case.episode
    rounds = min(max(episode.notes.get("rounds", episode.turns) - 1, 0), 3)
    made[case.acting] = -(term.turn * rounds + term.search * min(len(episode.searches), 3)) / 3
    return made


def _difference(case: Case) -> Floats:
    """A proposal earns its score, another call what the next proposal gains over the one before."""
    made, scores = np.zeros(len(case.episode.calls)), case.proposals
    for i in case.acting:
        earlier = [value for proposal, value in scores.items() if proposal < i]
        later = [value for proposal, value in scores.items() if proposal > i]
        made[i] = scores[i] if i in scores else later[0] - (earlier[-1] if earlier else 0.0) if later else 0.0
    return made


def _gain(case: Case) -> Floats:
    made, scores = np.zeros(len(case.episode.calls)), case.proposals
    made[list(scores)] = np.diff(list(scores.values()), prepend=0.0)
    return made


def _praise(case: Case) -> Floats:
    """A trial answer earns its score, and the last call before each but the first a share of what it gained."""
    episode, total = case.episode, np.zeros(len(case.episode.calls))
    trials = [i for i, call in enumerate(episode.calls) if call.prefix]
    total[trials] = values = [case.score(episode, episode.calls[i].answer or "") for i in trials]
    for t in range(1, len(trials)):
        between = [i for i in case.acting if trials[t - 1] < i < trials[t]]
        total[between[-1:]] += case.terms["praise"].alpha * (values[t] - values[t - 1])
    return total


TERMS: dict[str, Callable[[Case], Floats]] = {
    "outcome": _outcome,
    "format": _format,
    "overlong": _overlong,
    "costs": _costs,
    "difference": _difference,
    "gain": _gain,
    "praise": _praise,
    **FURTHER,
}
"""Rewards of each call of an episode, by the name of the term. Other terms ask a judge, or are a user's own."""


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
