"""Estimator ``gigpo``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.train.algorithms.by_call import ByCall, CallAdvantages, Step
from searchgym.train.algorithms.estimator import Floats, Scaled, equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Gigpo(ByCall, Scaled):
    """Adds to GRPO's advantage of each call a comparison with the group's calls in the same state.

    A state is the set of pages that an attempt had retrieved or opened before the call. A call in a state that several
    calls of the group share gets ``A + weight (R - mean R) / (std R + eps)``, where A is GRPO's advantage of the
    attempt, R the discounted reward ``gamma^(calls left) r``, and mean and deviation are over the calls in that state.
    A call that is alone in its state gets A. The contexts of calls in one state differ all the same (the order of
    searches, thoughts), so the comparison has a bias that one of equal beginnings (``siblings``, ``tree``) lacks.

    Source: GiGPO, arXiv 2505.10978, section 4 (gamma 0.95, weight 1), whose states are those of the environment.
    """

    counted: ClassVar = ("calls", "shared_state")

    weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the comparison within states."""
    gamma: Annotated[float, Interval(gt=0, le=1)] = 0.95
    """Factor by which the reward is discounted for each later call."""

    @override
    def compare_calls(self, rewards: Sequence[float], paths: Sequence[Sequence[Step]]) -> CallAdvantages:
        states: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for attempt, path in enumerate(paths):
            for number, step in enumerate(path):
                states[step.state].append((attempt, number))
        across = self.scaled(np.array(rewards, np.float64)).tolist()
        rows = [[advantage] * len(path) for advantage, path in zip(across, paths, strict=True)]
        for calls in states.values():
            later: Floats = np.array([self.gamma ** (len(paths[a]) - 1 - n) * rewards[a] for a, n in calls])
            if len(calls) > 1 and not equal(later):
                for (a, n), centred in zip(calls, self.scaled(later), strict=True):
                    rows[a][n] += self.weight * float(centred)
        in_company = sum(len(calls) for calls in states.values() if len(calls) > 1)
        return CallAdvantages(rows, {"calls": sum(map(len, paths)), "shared_state": in_company})
