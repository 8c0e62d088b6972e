"""Second implementation of the formulas over the tree of a group's attempts, by comparing attempts pair by pair.

Attempts are given by their rewards and by keys of their calls, which hold all tokens up to each call's end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Paths = Sequence[Sequence[bytes]]
"""Keys of each attempt's calls, in order."""


def in_common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Returns the number of calls with which two attempts begin alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def parting(paths: Paths, attempt: int) -> int:
    """Returns the number of calls after which an attempt parts from every other one."""
    return max((in_common(paths[attempt], path) for n, path in enumerate(paths) if n != attempt), default=0)


def shaped_rewards(rewards: Sequence[float], paths: Paths, gain: float, mix: float) -> list[float]:
    """Returns the rewards that ``shaped`` compares."""
    shaped = []
    for attempt, reward in enumerate(rewards):
        depth = parting(paths, attempt)
        family = [n for n, path in enumerate(paths) if in_common(path, paths[attempt]) >= depth]
        parent = sum(rewards[n] for n in family) / len(family)
        means = []
        for n in family:
            if n == attempt:
                continue
            ends = len(paths[n]) == depth
            same = [m for m in family if m == n or (not ends and in_common(paths[m], paths[n]) > depth)]
            if n == min(same):  # each sibling once
                means.append(sum(rewards[m] for m in same) / len(same))
        siblings = sum(means) / len(means) if means else parent
        shaped.append((1 + gain) * reward - gain * ((1 - mix) * parent + mix * siblings))
    return shaped


def deepsearch(
    rewards: Sequence[float], paths: Paths, doubts: Sequence[Sequence[float]], right: float
) -> list[list[float]]:
    """Returns the advantages of ``deepsearch``; `doubts` are the mean negative log-probs of each attempt's calls."""
    points = [(parting(paths, n), tuple(path[: parting(paths, n)])) for n, path in enumerate(paths)]
    leading = []
    for point in dict.fromkeys(points):
        rivals = [n for n in range(len(paths)) if points[n] == point]
        winners = [n for n in rivals if rewards[n] > right] or rivals
        leading.append(min(winners, key=lambda n: float(np.mean(doubts[n]))))
    worth: dict[tuple[int, bytes], float] = {}
    for n in leading:
        for depth, key in enumerate(paths[n]):
            through = [m for m in leading if in_common(paths[m], paths[n]) > depth]
            shares = [max((depth + 1) / len(paths[m]), 0.1) * (2 * rewards[m] - 1) for m in through]
            positive = [share for share in shares if share > 0]
            worth[depth, key] = sum(positive or shares) / len(positive or shares)
    mean = sum(worth.values()) / len(worth)
    return [[worth[d, key] - mean if (d, key) in worth else 0.0 for d, key in enumerate(path)] for path in paths]
