"""Interface of the critic's losses: how outputs of its head become values, and what is minimised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from searchgym.options import Kind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss(Kind):
    """Base class of the critic's losses; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.algorithms.value_losses"
    noun: ClassVar = "value loss"
    clips: ClassVar[bool] = False
    """True if the loss uses `CriticOptions.value_clip`."""

    def outputs(self) -> int:
        """Returns the number K of outputs of the critic's head. Default: 1."""
        return 1

    def start(self) -> list[float]:
        """Returns the K outputs with which the critic starts; their value should be 0. Default: zeros."""
        return [0.0] * self.outputs()

    def values(self, outputs: Tensor) -> Tensor:
        """Computes (N,) float32 values from (N, K) outputs of the head."""
        raise NotImplementedError(f"{type(self).__name__} defines no values")

    def sums(
        self, outputs: Tensor, old_values: Tensor, returns: Tensor, weight: Tensor, clip: float | None
    ) -> tuple[Tensor, dict[str, float]]:
        """Sums the loss over tokens.

        Args:
            outputs: (N, K) outputs of the head, with gradient.
            old_values: (N,) values before the step's first update.
            returns: (N,) returns to learn.
            weight: (N,) weights by `searchgym.train.algorithms.losses.token_weights`.
            clip: `CriticOptions.value_clip`; None if the loss does not use it.

        Returns:
            The weighted sum, not yet divided by the denominator; and unweighted sums over tokens by metric name, with
            ``value``, ``return`` and ``squared_error``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no sums")
