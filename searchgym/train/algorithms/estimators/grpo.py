"""Estimator ``grpo``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from searchgym.train.algorithms.advantages import Comparing
from searchgym.train.algorithms.estimator import Floats, Group, Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(Comparing, Scaled):
    """Computes GRPO's advantages of one group, ``(r_i - mean(r)) / (max(std(r), floor) + eps)``.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2, outcome supervision. Search-R1 uses the deviation over n - 1
    and eps 1e-6 (the defaults), TRL over n - 1 and 1e-4; ``std: none`` is Dr.GRPO, arXiv 2503.20783. The floor is our
    addition.
    """

    @override
    def compare(self, group: Group) -> Floats:
        return self.scaled(group.returns)
