"""Interface of the methods of training, one class each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from searchgym.options import Kind
from searchgym.train.algorithms.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Kind):
    """Base class of training methods: one subclass per method, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.methods"
    noun: ClassVar = "method"
    compares: ClassVar[bool] = False
    """True if the method learns from advantages, so that credit, advantages and the policy loss apply. If false, it
    maximises the likelihood of its samples."""

    @property
    def demonstrated(self) -> int:
        """Number of demonstrations per step; 0 (the default) if episodes are sampled instead."""
        return 0

    @property
    def least_reward(self) -> float | None:
        """Minimum reward of the episodes to learn from. Default: None, all episodes."""
        return None

    @property
    def every_token(self) -> bool:
        """Whether the loss covers every token except the first. Default: False (only tokens that the model wrote)."""
        return False

    def dropped(self, step: int, steps: int) -> float:
        """Returns the share of predictable tokens that a 0-based step does not learn. Default: 0.

        See `searchgym.train.algorithms.predictable`.
        """
        return 0.0

    def samples(self) -> Sequence[Sample]:
        """Returns the samples of the demonstrations to learn from. Default: none."""
        return ()

    def on_episodes(self) -> Method:
        """Returns a method that makes the same updates but learns from all sampled episodes. Default: itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood(Method):
    """Base class of methods that maximise likelihood."""

    targets: Literal["model", "all"] = "model"
    """Tokens that are learnt: those the model wrote (``model``), or every token except the first (``all``, to train a
    reader from scratch)."""

    @property
    @override
    def every_token(self) -> bool:
        return self.targets == "all"
