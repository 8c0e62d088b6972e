"""Estimator ``siblings``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from searchgym.train.algorithms.by_call import ByCall, CallAdvantages, Step
from searchgym.train.algorithms.estimator import Floats, Scaled

Node = tuple[bytes, ...]
"""The calls of a beginning, each by its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings(ByCall, Scaled):
    """Adds to GRPO's advantage of each call a comparison with its siblings: other calls after the same beginning.

    After a beginning with several different calls, the call v gets ``A + weight (V(v) - mean V) / (std V + eps)``,
    where A is GRPO's advantage of the attempt, V(v) the mean reward of the attempts through v, and mean and deviation
    are over the calls after that beginning. A call without siblings gets A. The question alone is a beginning too, so
    that different first calls are siblings; see `searchgym.train.algorithms.estimators.tree` on attempts that share
    nothing.

    Source: Sibling-GRPO of V-STAR, arXiv 2602.10699, and its released code (weight 1, eps 1e-4). Deviations: a node is
    a call, not a token; attempts are independent, while its code expands at chosen nodes; the deviation is the one
    that `std` names.
    """

    counted: ClassVar = ("nodes", "branching")

    weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the comparison with siblings."""
    eps: Annotated[float, Ge(0)] = 1e-4
    """Constant added to the standard deviation."""

    @override
    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        nodes = [[tuple(s.tokens for s in path[: d + 1]) for d in range(len(path))] for path in paths]
        below: defaultdict[Node, list[float]] = defaultdict(list)
        children: defaultdict[Node, dict[Node, None]] = defaultdict(dict)
        for reward, path in zip(rewards, nodes, strict=True):
            for node in path:
                below[node].append(reward)
                children[node[:-1]][node] = None
        value = {node: float(np.mean(under)) for node, under in below.items()}
        local = dict[Node, float]()
        for siblings in children.values():
            values: Floats = np.array([value[node] for node in siblings])
            centred = self.scaled(values) if len(values) > 1 else np.zeros(1)
            local |= zip(siblings, centred.tolist(), strict=True)
        across = self.scaled(np.array(rewards, np.float64)).tolist()
        rows = [[a + self.weight * local[node] for node in path] for a, path in zip(across, nodes, strict=True)]
        branching = sum(len(siblings) > 1 for siblings in children.values())
        return CallAdvantages(rows, {"nodes": len(below), "branching": branching})
