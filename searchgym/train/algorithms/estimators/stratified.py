"""Estimator ``stratified``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Interval
from typing_extensions import override

from searchgym.train.algorithms.advantages import Comparing
from searchgym.train.algorithms.estimator import Floats, Group, Scaled, equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified(Comparing, Scaled):
    """Computes Stratified GRPO's advantages of one group, ``alpha A_SAN + (1 - alpha) A_GN``.

    ``A_SAN`` is GRPO within the stratum (episodes with the same number of searches), with the standard deviation over
    n, so that its variance within the stratum is 1; ``A_GN`` is GRPO within the group, with the standard deviation that
    `std` names. With ``std: none`` neither is divided.

    Source: Stratified GRPO, arXiv 2510.06214, which proves unit variance within strata. The paper does not define the
    advantage of a stratum of one episode (0 or a division by 0, depending on the standard deviation); here it is
    ``A_SAN = A_GN``. A stratum of equal rewards, before a KL penalty, has ``A_SAN`` 0. The paper does not state its
    alpha. In groups of fewer than 8, most strata hold one or two episodes.
    """

    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Weight of the comparison within the stratum, from 0 (plain GRPO) to 1."""

    @override
    def compare(self, group: Group) -> Floats:
        returns = group.returns
        across = self.scaled(returns)
        within = across.copy()
        for count in np.unique(group.searches):
            stratum = group.searches == count
            if stratum.sum() > 1:
                of = returns[stratum]
                within[stratum] = 0.0 if equal(group.rewards[stratum]) else self.scaled(of, "population")
        return self.alpha * within + (1 - self.alpha) * across

    def tally(self, group: Group) -> Mapping[str, int]:
        """Returns the numbers of strata and of ``lone`` strata, whose single episode is compared with its group."""
        _, sizes = np.unique(group.searches, return_counts=True)
        return {"strata": len(sizes), "lone": int((sizes == 1).sum())}
