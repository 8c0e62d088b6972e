"""Estimator ``reinforce-pp``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.train.algorithms.advantages import Comparing
from searchgym.train.algorithms.estimator import Floats, Group, Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePp(Comparing, Scaled):
    """Computes REINFORCE++'s advantages: the returns of the batch, whitened over its tokens.

    Source: REINFORCE++, arXiv 2501.03262; see `searchgym.train.algorithms.estimator.whiten` for deviations.
    """

    over_batch: ClassVar = True
    whitens: ClassVar = True
    kl_by_token: ClassVar = True

    @override
    def compare(self, group: Group) -> Floats:
        return group.returns
