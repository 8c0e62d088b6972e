"""Base class of estimators that compute advantages of single calls from the rewards of whole episodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from searchgym.train.algorithms.advantages import calls_of_episodes, fates_of, with_advantage
from searchgym.train.algorithms.estimator import AdvantageOptions, Estimator, GroupCounts, counts_of
from searchgym.train.algorithms.samples import Sample, Targets


class Step(NamedTuple):
    """One call of an attempt, as far as attempts can have it in common."""

    tokens: bytes
    """All tokens up to the end of the call, observations included."""
    state: bytes
    """What the attempt had retrieved before the call; see `SampleCall.state`."""
    surprise: float = 0.0
    """Mean negative log-prob of the call's tokens, in nats."""


class CallAdvantages(NamedTuple):
    """Advantages of the calls of a group of attempts."""

    rows: list[list[float]]
    """One row per attempt, one number per call."""
    counts: Mapping[str, int]
    """Counts by name, which metrics sum over the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByCall(Estimator):
    """Base class of estimators that define `compare_calls`.

    Rewards of episodes, and the samples that stay in the batch, are as with ``grpo`` and ``normalise: all``. Trial
    answers get 0.
    """

    whole_episodes: ClassVar = True
    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that `compare_calls` returns."""

    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        """Computes the advantages of the calls of one group whose rewards differ.

        Args:
            rewards: One per attempt.
            paths: The calls of each attempt, in order.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no compare_calls")

    @override
    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        fates = fates_of(samples, options)
        groups: dict[str, list[list[tuple[int, int]]]] = defaultdict(list)
        for calls in calls_of_episodes(samples):
            if calls:
                groups[samples[calls[0][0]].group_uid or ""].append(calls)
        by_token, more = [np.zeros(len(sample.ids)) for sample in samples], Counter(dict.fromkeys(self.counted, 0))
        for group, members in groups.items():
            if fates[group] != "signal":
                continue
            paths = [[_step(samples[i], j) for i, j in calls] for calls in members]
            first = [samples[calls[0][0]] for calls in members]
            rewards = [float(sample.reward[sample.mask].sum()) for sample in first]
            rows, counts = self.compare_calls(rewards, paths)
            for calls, values in zip(members, rows, strict=True):
                for (i, j), value in zip(calls, values, strict=True):
                    call = samples[i].calls[j]
                    by_token[i][call.start : call.end] = value
            more.update(counts)
        remaining = [
            with_advantage(sample, row[sample.mask])
            for sample, row in zip(samples, by_token, strict=True)
            if (fates[sample.group_uid or ""] == "signal" or not options.drop_zero_variance)
            and not (options.drop_overlong and sample.overlong)
        ]
        return remaining, replace(counts_of(fates), more=dict(more))


def _step(sample: Sample, number: int) -> Step:
    """Returns a call of a sample, given its index in `Sample.calls`."""
    call = sample.calls[number]
    surprise = -float(sample.sampler_logp[call.start : call.end].mean(dtype=np.float64))
    return Step(sample.ids[: call.end].tobytes(), call.state, surprise)


def branching_points(nodes: Sequence[Sequence[bytes]]) -> tuple[list[int], dict[str, int]]:
    """Returns the number of calls after which each attempt parts from all others, and the counts of nodes.

    Args:
        nodes: Keys of each attempt's calls, such as `Step.tokens`; calls are the same node if their keys and all
            earlier keys are equal. ``nodes`` counts different calls, ``shared`` those that several attempts have.
    """
    passed = Counter(tuple(path[:depth]) for path in nodes for depth in range(1, len(path) + 1))
    points = [sum(passed[tuple(path[:depth])] > 1 for depth in range(1, len(path) + 1)) for path in nodes]
    return points, {"nodes": len(passed), "shared": sum(count > 1 for count in passed.values())}
