"""Estimator ``shaped``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.train.algorithms.by_call import ByCall, CallAdvantages, Step, branching_points
from searchgym.train.algorithms.estimator import Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped(ByCall, Scaled):
    """Compares attempts by rewards that their place in the group's tree shapes.

    An attempt parts from the others after its longest beginning that another attempt shares. With the reward r, the
    mean reward V of all attempts with that beginning, and the mean S over the other calls that follow it, each by the
    mean reward of its attempts, the shaped reward is ``r + gain (r - (1 - mix) V - mix S)``; without other calls S is
    V. Shaped rewards are compared over the group as by ``grpo``, and all calls of an attempt get its advantage. If no
    attempts share a call this is ``grpo``.

    Source: MARS2, arXiv 2602.07848, and its released code (gain and mix 0.5), whose workflow records no parents, so
    that its shaping changes nothing there. Deviations: its nodes are whole solutions that refine their parent's; here
    they are calls, and a parent's reward is the mean over what follows it.
    """

    counted: ClassVar = ("nodes", "shared")

    gain: Annotated[float, Ge(0)] = 0.5
    """Weight of the difference between a reward and its baseline."""
    mix: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Share of the siblings in the baseline; the rest is the parent's."""

    @override
    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        nodes = [[*(step.tokens for step in path), b"end %d" % attempt] for attempt, path in enumerate(paths)]
        points, counts = branching_points([path[:-1] for path in nodes])  # what ends somewhere is a child of its own
        below: defaultdict[tuple[bytes, ...], dict[bytes, list[float]]] = defaultdict(lambda: defaultdict(list))
        for reward, path in zip(rewards, nodes, strict=True):
            for depth, child in enumerate(path):
                below[tuple(path[:depth])][child].append(reward)
        shaped = []
        for reward, path, depth in zip(rewards, nodes, points, strict=True):
            children = below[tuple(path[:depth])]
            parent = float(np.mean([value for under in children.values() for value in under]))
            others = [float(np.mean(under)) for child, under in children.items() if child != path[depth]]
            siblings = float(np.mean(others)) if others else parent
            shaped.append(reward + self.gain * (reward - (1 - self.mix) * parent - self.mix * siblings))
        values = self.scaled(np.array(shaped, np.float64)).tolist()
        return CallAdvantages([[value] * len(path) for value, path in zip(values, paths, strict=True)], counts)
