"""Curriculum ``learnability``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.train.curriculum.stages import Schedule, StageOptions, Tally

RATE: Final = "curriculum/pass_rate/"
"""Prefix of the metrics of pass rates by value."""
WEIGHT: Final = "curriculum/weight/"
"""Prefix of the metrics of weights by value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnability(Schedule):
    """Draws more of the questions whose attempts are partly right, and moves on from kinds that are learnt.

    The weight of a value of `by` is its weight in the mix times its `learnability`, 0 once its pass rate is at least
    `learnt`. Of K values each gets the share `least`, and the rest, 1 - K `least`, in proportion to its weight; if
    all are learnt, the rest follows the mix. Rates are those of the training's answers in a value's last `window`
    steps; a value that is not measured yet has the learnability of the uniform prior.

    Source: LILO (Learning to Reason at the Frontier of Learnability, arXiv 2502.12272) prefers questions with a high
    variance of success, p (1 - p); DAPO (arXiv 2503.14476, section 3.2) drops groups without signal, whose probability
    this is before they are sampled. Deviations: p is the pass rate of a kind, not of one question, and from episodes
    that the training samples anyway; kinds whose questions differ have less signal than that rate says; `learnt`,
    `least` and the posterior are ours.
    """

    stages: list[StageOptions] = field(default_factory=lambda: [StageOptions()])
    """One stage, with the mix that pass rates change, and noise."""
    window: Annotated[int, Ge(1)] = 5
    """Number of steps, of those that asked for a value, over which its pass rate is measured."""
    learnt: Annotated[float, Interval(gt=0, le=1)] = 0.8
    """Pass rate from which on a value is learnt and has the share `least`, until its rate falls again."""
    least: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    """Share of the questions that each value has at least, so that none is forgotten and every rate stays measured."""

    @override
    def problems(self) -> Iterable[str]:
        yield from Schedule.problems(self)
        if len(self.stages) > 1:
            yield f"stages has {len(self.stages)} stages: expected one, whose mix the pass rates change"

    @property
    @override
    def measured_steps(self) -> int:
        return self.window

    @override
    def weigh(self, mix: Mapping[str, float], tallies: Mapping[str, Tally], attempts: int) -> Mapping[str, float]:
        values = ", ".join(mix)
        if len(mix) < 2:
            raise UsageError(f"curriculum: {self.by} has one value, {values}, and needs two: set curriculum.by or mix")
        spread = 1 - self.least * len(mix)
        if spread <= 0:
            raise UsageError(
                f"curriculum.least is {self.least:g}: for {len(mix)} values of {self.by} ({values}) it must be below "
                f"{1 / len(mix):.3g}"
            )
        weights = dict.fromkeys(mix, 0.0)
        for value, weight in mix.items():
            right, answers = tallies.get(value, Tally(0.0, 0))
            if not answers or right / answers < self.learnt:
                weights[value] = weight * learnability(right, answers - right, max(attempts, 2))
        weights = weights if any(weights.values()) else dict(mix)
        total = sum(weights.values())
        return {value: self.least + spread * weight / total for value, weight in weights.items()}

    @override
    def warning(self, metrics: Sequence[Mapping[str, float]]) -> str | None:
        state = self._state(metrics[-1]) if metrics else None
        if state is None:
            return None
        steps = [row for row in metrics if any(name.startswith(WEIGHT) for name in row)]
        after = [number for number in range(self.window, len(steps) + 1) if self._state(steps[number - 1]) == state]
        if after != [len(steps)]:  # told before, or too early
            return None
        if state == "learnt":
            return (
                f"curriculum: every value of {self.by} is learnt ({_listed(_pass_rates(steps[-1]))} right): questions "
                "are drawn by the mix; add harder questions, or end the training"
            )
        zero = ", ".join(value for value, rate in _pass_rates(steps[-1]).items() if rate == 0)
        return (
            f"curriculum: {self.by} {zero}: no right answer in the last {self.window} steps, and nothing else is left "
            "to learn; warm up the model (searchgym demonstrate, then method: supervised), or add easier questions"
        )

    def _state(self, row: Mapping[str, float]) -> Literal["learnt", "stuck"] | None:
        """Returns ``learnt`` if every value is learnt after a step, ``stuck`` if none can be; else None."""
        rates = _pass_rates(row).values()
        if not rates or any(0 < rate < self.learnt for rate in rates):
            return None
        return "learnt" if min(rates) >= self.learnt else "stuck"


def _pass_rates(row: Mapping[str, float]) -> dict[str, float]:
    """Returns the pass rates in a row of metrics by value; empty unless every value that has a weight is measured."""
    values = [name.removeprefix(WEIGHT) for name in row if name.startswith(WEIGHT)]
    rates = {value: row[RATE + value] for value in values if RATE + value in row}
    return rates if len(rates) == len(values) else {}


def _listed(rates: Mapping[str, float]) -> str:
    """Returns pass rates by value in words, such as ``1: 85 %, 2: 90 %``."""
    return ", ".join(f"{value}: {rate:.0%}" for value, rate in rates.items())


def learnability(right: float, wrong: float, attempts: int) -> float:
    """Returns the probability that a group of attempts has both right and wrong answers, averaged over the pass rate.

    It is the mean of ``1 - p^n - (1 - p)^n`` under the posterior Beta(1 + right, 1 + wrong) of a uniform prior, with
    ``E[p^n] = prod (a + i) / (a + b + i)``, i from 0 to n - 1. With n = 2 it is twice the mean of p (1 - p).

    Args:
        right: Number of right answers, at least 0.
        wrong: Number of wrong answers, at least 0.
        attempts: Number n of attempts in a group, at least 2.
    """
    a, b = 1 + right, 1 + wrong
    all_right, all_wrong = (math.prod((first + i) / (a + b + i) for i in range(attempts)) for first in (a, b))
    return 1 - all_right - all_wrong
