"""Second implementation of the rewards of calls, and of their grouping into sequences, written from the definitions.

No code is shared with `searchgym.train.credit` and `searchgym.train.algorithms`, so that a fault there is not repeated
here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from searchgym.records import Call, Episode
from searchgym.rollout.sampler import Sampled, SampleRequest
from searchgym.testing.reference.case import Case, Floats
from searchgym.testing.reference.terms import FURTHER


def call_rewards(case: Case) -> list[tuple[float, float]]:
    """Returns (reward, part of it that is not passed back to earlier calls) of each call of an episode.

    The reward is the weighted sum of the credit terms that apply to the call's role. All terms must be in `TERMS`.
    """
    by_term = {name: TERMS[name](case) for name in case.terms}
    pairs = []
    for i, call in enumerate(case.episode.calls):
        mine = {name: term for name, term in case.terms.items() if call.role in (term.roles or [call.role])}
        parts = {name: term.weight * float(by_term[name][i]) for name, term in mine.items()}
        pairs.append((sum(parts.values()), parts.get("format", 0.0) + parts.get("overlong", 0.0)))
    return pairs


def _outcome(case: Case) -> Floats:
    term, calls = case.terms["outcome"], case.episode.calls
    paid = [i for i in case.lasts if calls[i].role in (term.roles or [calls[i].role])]
    return case.at_ends(case.episode.reward / (len(paid) if term.split and paid else 1))


def _format(case: Case) -> Floats:
    return np.array([0.0 if call.legal else case.penalties.get(call.role, 0.0) for call in case.episode.calls])


def _overlong(case: Case) -> Floats:
    rewards, term = np.zeros(len(case.episode.calls)), case.terms["overlong"]
    for acting in case.sets:
        beyond = sum(case.episode.calls[i].end - case.episode.calls[i].start for i in acting) - (
            term.limit - term.cache
        )
        rewards[acting[-1]] = -min(beyond / term.cache, 1.0) if beyond > 0 else 0.0
    return rewards


def _costs(case: Case) -> Floats:
    rewards, term, episode = np.zeros(len(case.episode.calls)), case.terms["costs"], case.episode
    rounds = min(max(episode.notes.get("rounds", episode.turns) - 1, 0), 3)
    rewards[case.acting] = -(term.turn * rounds + term.search * min(len(episode.searches), 3)) / 3
    return rewards


def _difference(case: Case) -> Floats:
    """A proposal earns its score; any other call earns the gain of the next proposal over the previous one."""
    rewards, scores = np.zeros(len(case.episode.calls)), case.proposals
    for i in case.acting:
        earlier = [value for proposal, value in scores.items() if proposal < i]
        later = [value for proposal, value in scores.items() if proposal > i]
        rewards[i] = scores[i] if i in scores else later[0] - (earlier[-1] if earlier else 0.0) if later else 0.0
    return rewards


def _gain(case: Case) -> Floats:
    rewards, scores = np.zeros(len(case.episode.calls)), case.proposals
    rewards[list(scores)] = np.diff(list(scores.values()), prepend=0.0)
    return rewards


def _praise(case: Case) -> Floats:
    """A trial answer earns its score; the last call before trials earns a share of their gain over earlier ones."""
    episode, total = case.episode, np.zeros(len(case.episode.calls))
    term, values, last = case.terms["praise"], dict[int, float](), -1
    for i in (i for i, call in enumerate(episode.calls) if call.prefix):
        total[i] = case.score(episode, episode.calls[i].answer or "")
    for i in [*case.acting, len(episode.calls)]:  # the trials after each call that acts, and before the first
        trials = list(total[last + 1 : i])
        if trials:
            sets = list(itertools.combinations(trials, term.prover))
            right = [float(max(chosen) >= 1) for chosen in sets] if term.prover > 1 else trials
            values[last] = float(np.mean(right))
        last = i
    gains = np.diff(list(values.values()))
    for call, gain in zip(list(values)[1:], gains, strict=True):
        total[call] += term.alpha * gain
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
"""Functions that return the reward of each call of an episode, by term. Other terms need a judge or are a user's."""


def continued(calls: Sequence[Call], ends: Mapping[int, bytes], starts: Mapping[int, bytes]) -> list[list[int]]:
    """Groups an episode's calls into training sequences, by their prompts.

    A call continues the call with the longest prompt and response that its prompt begins with, unless another call
    continues that one already. A trial answer is a sequence by itself, which no call continues.

    Args:
        calls: The calls of an episode.
        ends: Prompt and response of each call that has tokens, as bytes, by the call's index.
        starts: Prompt of each such call, as bytes.
    """
    sequences: list[list[int]] = []
    continued_calls: set[int] = set()
    for i in sorted(starts, key=lambda i: (calls[i].context, i)):
        seen = [j for j in ends if j != i and not calls[j].prefix and starts[i].startswith(ends[j])]
        parent = max(seen, key=lambda j: len(ends[j]), default=None)
        if parent is None or parent in continued_calls or calls[i].prefix:
            sequences.append([i])
            continue
        continued_calls.add(parent)
        next(row for row in sequences if parent in row).append(i)
    return sequences


def sequences(episode: Episode, exchanges: Sequence[tuple[SampleRequest, Sampled]]) -> list[list[int]]:
    """Returns the training sequences of an episode's calls, given the requests and replies of its models."""
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
