"""Estimators that compare the episodes or calls of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.estimator import AdvantageOptions, Estimator, GroupCounts
from searchgym.train.algorithms.samples import Sample, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing(Estimator):
    """Base of estimators that define `compare`: the advantages of one group from its rewards."""

    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        """Sets advantages by `assign_advantages`; see `Estimator.assign`."""
        return assign_advantages(samples, options, kl_coef)
