"""Interface of advantage estimators, one class each: formulas from the rewards of a group to advantages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from searchgym.options import Kind, Setting
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.groups import Floats, Group, GroupCounts
from searchgym.train.algorithms.samples import Sample, Targets

if TYPE_CHECKING:
    from searchgym.train.recipe.options import AdvantageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator(Kind):
    """How the rewards of a group become advantages: one class per estimator, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.algorithms.estimators"
    noun: ClassVar = "estimator"
    critic: ClassVar[bool] = False
    """True if a critic is trained, whose values the estimator uses; then no episodes are compared."""
    over_batch: ClassVar[bool] = False
    """True if all episodes of the batch are one group."""
    whitens: ClassVar[bool] = False
    """True if advantages are whitened over the tokens of the batch after the comparison; needs `Scaled`."""
    kl_by_token: ClassVar[bool] = False
    """True if KL in the reward is charged to each token from that token on, not to the episode."""
    whole_episodes: ClassVar[bool] = False
    """True if it needs rewards of whole episodes, from which it makes rewards of calls."""

    @classmethod
    def short(cls, value: object) -> object:
        """Reads a text as the estimator's name."""
        return {"kind": value} if isinstance(value, str) else value

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each choice of the run that does not go with this estimator."""
        return ()

    def compare(self, group: Group) -> Floats:
        """Computes the advantages of one group whose rewards differ, (n,) float64.

        Args:
            group: Returns, rewards and numbers of searches of at least `AdvantageOptions.min_group` episodes or calls.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither compare nor assign")

    def tally(self, group: Group) -> Mapping[str, int]:
        """Returns numbers of a group with signal, which are summed over groups for metrics. Default: none."""
        return {}

    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        """Sets the advantages of a batch of samples. Default: `compare` within groups, by `assign_advantages`.

        Args:
            samples: Whole groups; with values and log-probs where the estimator or `kl_coef` needs them.
            options: What is compared, and which samples are dropped.
            kl_coef: Weight of the KL penalty in the reward.
            targets: Token positions that have a value, for estimators with a critic.
            frozen: Samples of the same episodes that nothing is learnt from, for estimators with a critic.

        Returns:
            The samples that stay in the batch, with advantages; and counts of the groups, if there are groups.
        """
        return assign_advantages(samples, options, kl_coef)

    def warning(self, metrics: Sequence[Mapping[str, float]]) -> str | None:
        """Returns a warning after a step, given the metrics of all steps so far. Default: none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Estimator):
    """Base of estimators that divide centred values by their deviation."""

    std: Literal["sample", "population", "none"] = "sample"
    """Standard deviation that centred values are divided by: over n - 1, over n, or no division (Dr.GRPO)."""
    eps: Annotated[float, Ge(0)] = 1e-6
    """Constant added to the standard deviation."""
    std_floor: Annotated[float, Ge(0)] = 0.0
    """Lower bound of the standard deviation: without it, differences of F1 near 0 are amplified to noise."""

    def divisor(self, values: Floats, std: str | None = None) -> float:
        """Returns the divisor of centred values: ``max(std, floor) + eps``, or 1 with ``std: none``.

        Args:
            values: (n,) float64.
            std: Deviation to use instead of the option, if that is not ``none``.
        """
        if self.std == "none":
            return 1.0
        deviation = float(np.std(values, ddof=1 if (std or self.std) == "sample" else 0))
        return max(deviation, self.std_floor) + self.eps
