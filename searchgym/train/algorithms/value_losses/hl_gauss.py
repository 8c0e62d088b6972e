"""Value loss ``hl-gauss``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from annotated_types import Ge, Gt
from typing_extensions import override

from searchgym.errors import TrainingError
from searchgym.options import Setting
from searchgym.train.algorithms.value_loss import ValueLoss

if TYPE_CHECKING:
    from torch import Tensor

MOST_OUTSIDE: Final = 0.5
"""Share of a micro-batch's returns outside the range from which the loss raises an error."""
SMALLEST: Final = 1e-8
"""Least probability of a bin in the distribution that the critic starts with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HlGauss(ValueLoss):
    """Trains values by classification: a distribution over bins, whose mean is the value, learns a blurred return.

    The m bins have the same width w between `low` and `high`, with edges e and centres c. A return y, clamped to the
    range, has the target ``p_i ~ Phi((e_{i+1} - y) / s) - Phi((e_i - y) / s)``, normalised over the bins, with ``s =
    smoothing w``. The loss is the cross-entropy, the value ``sum_i p_i c_i``. Near the ends of the range the target's
    mean is not y: leave a margin of about three s beyond the returns, as the defaults do for rewards in [0, 1]. The
    metric ``clamped`` is the share of returns outside the range; if half of them are, the run ends with an error.

    Source: Stop Regressing, arXiv 2403.03950, section 3.2 (HL-Gauss of Imani and White, 2018); smoothing 0.75 and 51
    bins are a public configuration's. Deviations: returns outside the range are clamped; the head's bias starts at the
    logarithm of the target of 0, so that values start at 0 as those of ``squared`` do.
    """

    bins: Annotated[int, Ge(2)] = 51
    """Number of bins."""
    low: float = -0.5
    """Lower end of the first bin."""
    high: float = 1.5
    """Upper end of the last bin."""
    smoothing: Annotated[float, Gt(0)] = 0.75
    """Standard deviation of the target, in widths of a bin."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < 0 < self.high):
            yield f"low is {self.low:g} and high is {self.high:g}: expected low < 0 < high, with all returns between"

    @override
    def outputs(self) -> int:
        return self.bins

    @override
    def start(self) -> list[float]:
        import torch

        return self.targets(torch.zeros(1))[0].clamp(min=SMALLEST).log().tolist()

    def targets(self, returns: Tensor) -> Tensor:
        """Computes the target distributions of returns: (N,) to (N, bins), in the type of the returns."""
        import torch

        edges = torch.linspace(self.low, self.high, self.bins + 1, dtype=torch.float64, device=returns.device)
        spread = self.smoothing * (self.high - self.low) / self.bins
        y = returns.double().clamp(self.low, self.high)[:, None]
        below = torch.special.ndtr((edges - y) / spread)
        mass = below.diff(dim=1)
        targets: Tensor = (mass / mass.sum(1, keepdim=True)).to(returns.dtype)
        return targets

    @override
    def values(self, outputs: Tensor) -> Tensor:
        import torch

        edges = torch.linspace(self.low, self.high, self.bins + 1, device=outputs.device)
        values: Tensor = outputs.float().softmax(1) @ ((edges[1:] + edges[:-1]) / 2)
        return values

    @override
    def sums(
        self, outputs: Tensor, old_values: Tensor, returns: Tensor, weight: Tensor, clip: float | None
    ) -> tuple[Tensor, dict[str, float]]:
        outside = (returns < self.low) | (returns > self.high)
        if len(returns) and float(outside.float().mean()) >= MOST_OUTSIDE:
            raise TrainingError(
                f"critic.loss hl-gauss: {int(outside.sum())} of {len(returns)} returns are outside [{self.low:g}, "
                f"{self.high:g}], from {float(returns.min()):.3g} to {float(returns.max()):.3g}: set critic.loss.low "
                "and critic.loss.high so that all are between them"
            )
        entropy = -(self.targets(returns) * outputs.float().log_softmax(1)).sum(1)
        values = self.values(outputs.detach())
        statistics = {
            "value": values.sum(),
            "return": returns.sum(),
            "squared_error": (values - returns).square().sum(),
            "clamped": outside.float().sum(),
        }
        return (weight * entropy).sum(), {name: float(value) for name, value in statistics.items()}
