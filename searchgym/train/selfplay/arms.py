"""Kinds of questions that a proposer chooses from, and a policy over them that learns from pass rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Arm(NamedTuple):
    """A kind of question: all choices in its logical form except the entities."""

    shape: str
    """Shape of the question, such as ``chain``."""
    hops: int
    """Number of pages that must be read."""
    op: str
    """Operation of the form: ``path``, ``least``, ``greatest``, ``same`` or ``both``."""
    first: str
    """First relation of its paths."""
    last: str
    """Last relation of its paths."""

    @property
    def named(self) -> bool:
        """True if the answer is one of two names in the question, or yes or no."""
        return self.op in ("least", "greatest", "same")

    @property
    def name(self) -> str:
        """Name in logs and question ids, such as ``chain-2-path-director-born``."""
        return "-".join(map(str, self)).replace("~", "of-").replace(" ", "_")


Level = Literal["hops", "shape", "last", "relations"]
"""Level of detail at which a policy distinguishes arms; see `LEVELS`."""
LEVELS: Final[dict[Level, tuple[str, ...]]] = {
    "hops": ("hops",),
    "shape": ("shape", "hops", "op"),
    "last": ("shape", "hops", "op", "last"),
    "relations": ("shape", "hops", "op", "first", "last"),
}
"""Fields of an arm that a policy distinguishes, by level."""


def choice_of(arm: Arm, level: Level) -> tuple[Any, ...]:
    """Returns the fields of an arm that a level distinguishes."""
    return tuple(getattr(arm, name) for name in LEVELS[level])


def signal(rates: Iterable[float], attempts: Sequence[int]) -> Floats:
    """Returns an unbiased estimate of 4 p (1 - p) for each question, a measure of the learning signal of its attempts.

    If a share p of n attempts is right, the estimate is ``4 p (1 - p) n / (n - 1)``: largest at p = 1/2, 0 if no
    attempt or every attempt is right. NaN stays NaN.

    Source: SSP, arXiv 2510.18821, its reward for intermediate difficulty. The factor n / (n - 1) is ours; it removes
    the bias of the plain estimate.

    Args:
        rates: Shares of right attempts.
        attempts: Numbers of attempts, each at least 2.
    """
    p, n = np.array(list(rates), float), np.array(attempts, float)
    return np.asarray(4 * p * (1 - p) * n / (n - 1))


def hardness(rates: Iterable[float]) -> Floats:
    """Returns 1 - p for each question, the first reward of SSP: largest for questions that no attempt answers."""
    return 1 - np.array(list(rates), float)


class ArmPolicy:
    """A softmax policy over the mean advantages of arms, with decay (a bandit with Boltzmann exploration).

    A question's advantage is its reward minus the batch's mean, divided by the batch's standard deviation. An arm's
    value is the mean of its advantages, with weights that decay by `decay` per step. It is shrunk towards the value of
    the arm's shape, as if by `prior` further questions, and the shape's value towards 0. Values are divided by a
    temperature, which is raised until the entropy is at least `min_entropy` times that of uniform choice. Unlike with a
    policy gradient, values do not grow with the number of steps: they remain means.

    Args:
        arms: Kinds of questions, each once.
        level: Level at which arms are distinguished; see `LEVELS`.
        max_named: Maximum total probability of arms whose questions name their answer.
        decay: Factor per step on the weights of earlier steps.
        prior: Number of questions by which an arm is shrunk towards its shape, and a shape towards all.
        temperature: Lowest temperature.
        min_entropy: Minimum entropy, as a share of that of uniform choice.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        level: Level = "last",
        max_named: float = 1.0,
        *,
        decay: float = 0.9,
        prior: float = 2.0,
        temperature: float = 0.25,
        min_entropy: float = 0.7,
    ) -> None:
        self._level: Level = level
        self.arms, self._max_named = tuple(arms), max_named
        self._decay, self._prior, self._temperature, self._min_entropy = decay, prior, temperature, min_entropy
        self._choices = [choice_of(arm, level) for arm in self.arms]
        self._named = np.array([arm.named for arm in self.arms])
        self._above: Level = "hops" if level == "hops" else "shape"
        self._sums: dict[str, list[float]] = {}

    def values(self, arms: Sequence[Arm] | None = None) -> Floats:
        """Returns the shrunk mean advantage of each arm. Default: of all arms."""
        values = []
        for arm in self.arms if arms is None else arms:
            value = 0.0
            for key in self._keys(arm):
                total, weight = self._sums.get(key, (0.0, 0.0))
                value = (total + self._prior * value) / (weight + self._prior)
            values.append(value)
        return np.array(values)

    def _keys(self, arm: Arm) -> tuple[str, str]:
        """Returns the keys of an arm's sums: one for its shape, one for its level of detail."""
        shape, choice = choice_of(arm, self._above), choice_of(arm, self._level)
        return " ".join(["shape", *map(str, shape)]), " ".join(["arm", *map(str, choice)])

    def probabilities(self, open_arms: Sequence[bool] | None = None) -> Floats:
        """Returns the probability of each arm; they sum to 1 over open arms.

        Arms whose questions name their answer have together at most `max_named`, if other arms are open.
        """
        there = np.ones(len(self.arms), bool) if open_arms is None else np.array(open_arms)
        if not there.any():
            return np.zeros(len(self.arms))
        spread, values = self._spread(there), np.where(there, self.values(), -np.inf)
        least = self._min_entropy * self._entropy_of(self._bounded(spread))

        def at(temperature: float) -> Floats:
            weights = spread * np.exp((values - values.max()) / temperature)
            return self._bounded(weights / weights.sum())

        low = high = self._temperature  # the lowest one at which the chances are wide enough
        if self._entropy_of(sharp := at(low)) >= least:
            return sharp
        while self._entropy_of(at(high)) < least:
            high *= 2
            if high > 1e6:  # even draws: with one choice there is nothing to choose
                return at(high)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if self._entropy_of(at(middle)) >= least else (middle, high)
        return at(high)

    def _spread(self, there: npt.NDArray[np.bool_]) -> Floats:
        """Returns the initial probabilities of open arms: equal over the choices that the policy distinguishes."""
        times = Counter(choice for choice, is_open in zip(self._choices, there, strict=True) if is_open)
        chances = np.array([1 / times[choice] if choice in times else 0.0 for choice in self._choices]) * there
        return np.asarray(chances / chances.sum())

    def _bounded(self, chances: Floats) -> Floats:
        """Returns probabilities with the total of arms that name their answer limited to `max_named`."""
        share, most = float(chances[self._named].sum()), self._max_named
        if most < share < 1:
            return np.where(self._named, chances * most / share, chances * (1 - most) / (1 - share))
        return chances

    def _entropy_of(self, chances: Floats) -> float:
        """Returns the entropy, in nats, over the choices that the policy distinguishes."""
        by_choice: dict[Any, float] = {}
        for choice, chance in zip(self._choices, chances, strict=True):
            by_choice[choice] = by_choice.get(choice, 0.0) + float(chance)
        return -sum(chance * math.log(chance) for chance in by_choice.values() if chance > 0)

    def entropy(self) -> float:
        """Returns the entropy of the choices over that of even draws; 1 with a single choice."""
        even = self._entropy_of(self._bounded(self._spread(np.ones(len(self.arms), bool))))
        return self._entropy_of(self.probabilities()) / even if even else 1.0

    def learn(self, arms: Sequence[Arm], rewards: Floats) -> None:
        """Updates the values from the rewards of a batch of questions; rewards that are not finite are ignored."""
        for sums in self._sums.values():
            sums[:] = [value * self._decay for value in sums]
        finite = np.isfinite(rewards)
        if finite.sum() < 2:
            return
        centred = rewards - rewards[finite].mean()
        advantages = centred / max(float(rewards[finite].std()), 1e-6)
        for arm, advantage, counts in zip(arms, advantages, finite, strict=True):
            if counts:
                for key in self._keys(arm):
                    sums = self._sums.setdefault(key, [0.0, 0.0])
                    sums[0] += float(advantage)
                    sums[1] += 1.0

    def state(self) -> dict[str, Any]:
        """Returns the policy's state as plain JSON."""
        return {key: list(sums) for key, sums in sorted(self._sums.items())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
        self._sums = {key: list(sums) for key, sums in state.items()}
