"""Estimator ``rloo``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.algorithms.advantages import Comparing
from searchgym.train.algorithms.estimator import Floats, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Comparing):
    """Computes RLOO's advantages of one group, ``r_i - mean of the others``.

    Source: RLOO, arXiv 2402.14740, equation 7 (Kool et al. 2019). Deviation: the paper's loss treats a whole response
    as one action; here every token of the clipped-ratio loss gets the advantage, which gives the same gradient at ratio
    1.
    """

    @override
    def compare(self, group: Group) -> Floats:
        returns = group.returns
        advantages: Floats = returns - (returns.sum() - returns) / (len(returns) - 1)
        return advantages
