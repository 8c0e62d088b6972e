"""Estimator ``stages``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.options import Setting
from searchgym.train.algorithms.advantages import calls_of_episodes, with_advantage
from searchgym.train.algorithms.estimator import (
    AdvantageOptions,
    Floats,
    GroupCounts,
    Scaled,
    counts_of,
    group_fates,
    members_of,
)
from searchgym.train.algorithms.samples import Sample, Targets


class _Stage(NamedTuple):
    """The calls of one stage of one episode."""

    group: str
    number: int
    calls: list[tuple[int, int]]
    """(index of the sample, index in its `Sample.calls`) of each call."""
    gain: float
    """Weighted rewards of this stage and later ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages(Scaled):
    """Compares stages of an episode, each by the weighted rewards of its own and later stages.

    Stage k of attempt i has ``G_ik = sum_{j >= k} weights[k][j] R_ij``, where R_ij is the sum of the rewards of its
    calls in stage j. Its advantage is ``(G_ik - mean G_k) / (max(std G_k, floor) + eps)`` over the attempts that
    reached stage k, and all tokens of its calls get it. A stage that fewer than `min_group` attempts reached, or with
    equal G, gets 0. With grpo's division, multiplying a row of `weights` by a positive number changes nothing.

    Needs ``normalise: role`` and ``chain: none``, since rewards of calls are summed here. A term that gives the same
    reward to many calls, such as ``outcome``, must name the roles that get it.

    Source: SS-GRPO of RubricEM, arXiv 2605.10899, whose weights for plan, research, review and answer are ``[[1, .4,
    .6, .8], [0, 1, .4, .8], [0, 0, 1, .8], [0, 0, 0, 1]]``. Deviation: a stage is a set of roles; there one model
    writes tags. Its judge and bank of reflections are not here.
    """

    stages: dict[str, list[str]]
    """Roles of each stage, by the stage's name, in the order of the stages."""
    weights: list[list[float]] | None = None
    """One row per stage with one weight per stage; those of earlier stages must be 0. Default: 1 for the stage itself
    and for each later one."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        roles, count = list(self.roles()), len(self.stages)
        if count < 2 or not all(self.stages.values()) or len(set(roles)) < len(roles):
            yield f"stages is {self.stages}: expected two or more, each with roles, and no role twice"
        rows = self.matrix()
        if [len(row) for row in rows] != [count] * count:
            yield f"weights has rows of {[len(row) for row in rows]}: expected {count} rows of {count}, one per stage"
        elif any(not np.isfinite(row).all() or any(row[:k]) or row[k] <= 0 for k, row in enumerate(rows)):
            yield f"weights is {self.weights}: expected 0 for earlier stages, and more than 0 for the stage itself"
        if (setting.normalise, setting.chain) != ("role", "none"):
            yield "it sums rewards of calls: set advantage.normalise to role and advantage.chain to none"

    @override
    def roles(self) -> Iterable[str]:
        return [role for names in self.stages.values() for role in names]

    def matrix(self) -> list[list[float]]:
        """Returns the weights, one row per stage."""
        count = len(self.stages)
        return self.weights or [[float(j >= k) for j in range(count)] for k in range(count)]

    @override
    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        stages = [stage for calls in calls_of_episodes(samples) for stage in self._stages(samples, calls)]
        keys = [f"{stage.group} {stage.number}" for stage in stages]
        fates = group_fates(np.array([stage.gain for stage in stages]), keys, options)
        by_token = [np.zeros(len(sample.ids)) for sample in samples]
        of_group, signal = defaultdict[str, set[str]](set), set[int]()
        for key, members in members_of(keys).items():
            of_group[stages[members[0]].group].add(fates[key])
            if fates[key] != "signal":
                continue
            gains: Floats = np.array([stages[n].gain for n in members])
            for n, value in zip(members, self.scaled(gains), strict=True):
                for i, j in stages[n].calls:
                    call = samples[i].calls[j]
                    by_token[i][call.start : call.end] = value
                    signal.add(i)
        best = {
            group: next(fate for fate in ("signal", "zero_variance", "small") if fate in every)
            for group, every in of_group.items()
        }
        remaining = [
            with_advantage(sample, row[sample.mask])
            for i, (sample, row) in enumerate(zip(samples, by_token, strict=True))
            if (i in signal or not options.drop_zero_variance) and not (options.drop_overlong and sample.overlong)
        ]
        return remaining, counts_of(best)

    def _stages(self, samples: Sequence[Sample], calls: Sequence[tuple[int, int]]) -> list[_Stage]:
        """Returns the stages that an episode reached, given its calls."""
        number_of = {role: number for number, roles in enumerate(self.stages.values()) for role in roles}
        of_stage, earned = defaultdict[int, list[tuple[int, int]]](list), np.zeros(len(self.stages))
        for i, j in calls:
            call = samples[i].calls[j]
            if call.role not in number_of:
                names = ", ".join(number_of)
                raise DataError(f"advantage.estimator stages: role {call.role} is in no stage; the roles are {names}")
            of_stage[number_of[call.role]].append((i, j))
            earned[number_of[call.role]] += float(samples[i].reward[call.end - 1])
        matrix = np.array(self.matrix())
        group = samples[calls[0][0]].group_uid or "" if calls else ""
        return [_Stage(group, k, members, float(matrix[k] @ earned)) for k, members in sorted(of_stage.items())]
