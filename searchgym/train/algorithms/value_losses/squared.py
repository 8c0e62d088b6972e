"""Value loss ``squared``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from searchgym.train.algorithms.value_loss import ValueLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Squared(ValueLoss):
    """Trains values by their squared error, clipped near the old values.

    See `searchgym.train.algorithms.losses.value_sums`.
    """

    clips: ClassVar = True

    @override
    def values(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0].float()

    @override
    def sums(
        self, outputs: Tensor, old_values: Tensor, returns: Tensor, weight: Tensor, clip: float | None
    ) -> tuple[Tensor, dict[str, float]]:
        from searchgym.train.algorithms.losses import value_sums

        return value_sums(self.values(outputs), old_values, returns, weight, clip)
