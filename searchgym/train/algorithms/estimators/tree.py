"""Estimator ``tree``: the attempts at a question form a tree, and a node's value is the mean reward below it.

If no two attempts share a call, ``V(s)`` is the attempt's own reward at each node: its first call gets ``2 (r - mean
r)`` and the others ``r - mean r``, which is GRPO without division whose first call counts twice. To measure the effect
of the branches, compare with that control (`Tree.shared` false), not only with GRPO.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from typing_extensions import override

from searchgym.train.algorithms.by_call import ByCall, CallAdvantages, Step, branching_points

STEPS: Final = 3
"""Number of steps after which `Tree.warning` checks the share of calls that attempts have in common."""
FEW: Final = 0.05
"""Share of common calls below which `Tree.warning` warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(ByCall):
    """Computes each call's advantage from its node in the tree of a question's attempts; see `branch_rewards`.

    Two calls are the same node if all tokens up to their end are equal, observations included.
    """

    counted: ClassVar = ("nodes", "shared")

    shared: bool = True
    """If false, no two attempts share a call. This is the control: GRPO without division whose first call counts
    twice."""

    @override
    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        nodes = [[step.tokens for step in path] for path in paths]
        if not self.shared:
            nodes = [[b"%d " % attempt + node for node in path] for attempt, path in enumerate(nodes)]
        _, counts = branching_points(nodes)
        return CallAdvantages(branch_rewards(rewards, nodes), counts)

    @override
    def warning(self, metrics: Sequence[Mapping[str, float]]) -> str | None:
        trees = [row for row in metrics if "groups/nodes" in row]
        if not self.shared or len(trees) != STEPS or "groups/nodes" not in metrics[-1]:
            return None
        nodes, shared = (sum(row[f"groups/{name}"] for row in trees) for name in ("nodes", "shared"))
        if shared >= FEW * nodes:
            return None
        return (
            f"advantage.estimator tree: {shared:.0f} of {nodes:.0f} calls of {STEPS} steps are shared by several "
            "attempts, and without shared calls it is GRPO with std none whose first call counts twice: compare it "
            "with advantage.estimator.shared=false before you credit branches"
        )


def branch_rewards(rewards: Sequence[float], paths: Sequence[Sequence[bytes]]) -> list[list[float]]:
    """Computes the process reward of each call of a group, ``((V(s) - V(root)) + (V(s) - V(parent))) / sqrt(n(s))``.

    A node s is a prefix of an attempt up to the end of one of its calls, ``V(s)`` is the mean reward of the n(s)
    attempts with that prefix, and the root is the empty prefix.

    Source: TreeRL, arXiv 2506.11902: the global plus the local advantage, divided by the square root of the number of
    leaves below the node. Our deviations: the tree consists of the common prefixes of independent attempts, while
    TreeRL forks responses at tokens of high entropy; a node is a call, not a segment; and rewards are not normalised
    further.

    Args:
        rewards: One per attempt of the group.
        paths: Keys of each attempt's calls, in order; calls are the same node if their keys and all earlier keys are
            equal.

    Returns:
        One list per attempt, with one number per call.
    """
    below: dict[tuple[bytes, ...], list[float]] = defaultdict(list)
    for reward, path in zip(rewards, paths, strict=True):
        for depth in range(len(path) + 1):
            below[tuple(path[:depth])].append(reward)
    value = {node: sum(under) / len(under) for node, under in below.items()}
    return [
        [
            (2 * value[tuple(path[: d + 1])] - value[()] - value[tuple(path[:d])])
            / math.sqrt(len(below[tuple(path[: d + 1])]))
            for d in range(len(path))
        ]
        for path in paths
    ]
