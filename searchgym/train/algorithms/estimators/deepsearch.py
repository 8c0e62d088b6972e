"""Estimator ``deepsearch``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
from annotated_types import Interval
from typing_extensions import override

from searchgym.train.algorithms.by_call import ByCall, CallAdvantages, Step, branching_points

LEAST: Final = 0.1
"""Least weight of a node on a path that is backed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepsearch(ByCall):
    """Computes each call's advantage from one path for each branching point of the group's tree.

    Of the attempts that part from the others at the same call, one is backed up: a right one, else the most confident
    wrong one, whose tokens have the largest mean log-prob. On its path of L calls the d-th gets ``max(d / L, 0.1)
    (2 r - 1)``. A call on several such paths has the mean of its positive values, or of all if none is positive; its
    advantage is its value less the mean over the calls that have one. Other calls get 0.

    Source: DeepSearch, arXiv 2509.25454, and its released code. Deviations: a node is a call (there about 256 tokens);
    the tree is the one that the rollout made (`RolloutOptions.tree`, or what attempts have in common); right is a
    reward above `right`, and rewards between 0 and 1 count by their value; several values of a node are averaged.
    """

    counted: ClassVar = ("nodes", "shared", "backed_up")

    right: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Reward above which an attempt is right."""

    @override
    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        keys = [[step.tokens for step in path] for path in paths]
        nodes = [[tuple(path[:depth]) for depth in range(len(path) + 1)] for path in keys]
        points, counts = branching_points(keys)
        expansions: defaultdict[tuple[bytes, ...], list[int]] = defaultdict(list)
        for attempt, (path, depth) in enumerate(zip(nodes, points, strict=True)):
            expansions[path[depth]].append(attempt)

        def order(attempt: int) -> tuple[bool, float]:
            return rewards[attempt] <= self.right, float(np.mean([step.surprise for step in paths[attempt]]))

        chosen = [min(attempts, key=order) for attempts in expansions.values()]
        values: defaultdict[tuple[bytes, ...], list[float]] = defaultdict(list)
        for attempt in chosen:
            length = len(keys[attempt])
            for depth in range(1, length + 1):
                values[nodes[attempt][depth]].append(max(depth / length, LEAST) * (2 * rewards[attempt] - 1))
        value = {node: float(np.mean([v for v in of if v > 0] or of)) for node, of in values.items()}
        mean = float(np.mean(list(value.values())))
        rows = [[value[node] - mean if node in value else 0.0 for node in path[1:]] for path in nodes]
        return CallAdvantages(rows, counts | {"backed_up": len(chosen)})
