"""Estimator ``reinforce-pp-baseline``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.train.algorithms.advantages import Comparing
from searchgym.train.algorithms.estimator import Floats, Group, Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePpBaseline(Comparing, Scaled):
    """Computes ``r_i - mean(r)`` within each group, whitened over the tokens of the batch.

    Source: REINFORCE++, arXiv 2501.03262, the variant with a group baseline.
    """

    whitens: ClassVar = True

    @override
    def compare(self, group: Group) -> Floats:
        advantages: Floats = group.returns - group.returns.mean()
        return advantages
