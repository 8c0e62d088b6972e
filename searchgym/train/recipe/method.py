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
    """What a training learns from, and how: one class per method, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.train.methods"
    noun: ClassVar = "method"
    compares: ClassVar[bool] = False
    """True if it learns from advantages, so that credit, advantages and the policy loss act. False: it raises the
    likelihood of what it learns from."""

    @property
    def demonstrated(self) -> int:
        """Demonstrations per step; 0 (the default) if episodes are sampled instead."""
        return 0

    @property
    def least_reward(self) -> float | None:
        """Reward that an episode needs in order to be learnt from. Default: None, which takes all."""
        return None

    @property
    def every_token(self) -> bool:
        """True if every token except the first is learnt, not only the model's own. Default: False."""
        return False

    def samples(self) -> Sequence[Sample]:
        """Returns the samples of the demonstrations to learn from. Default: none."""
        return ()

    def on_episodes(self) -> Method:
        """Returns a method that makes the same updates from all episodes that the model samples. Default: itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood(Method):
    """A method of maximum likelihood."""

    targets: Literal["model", "all"] = "model"
    """Tokens that are learnt: the model's own, or every token except the first (to train a reader from scratch)."""

    @property
    @override
    def every_token(self) -> bool:
        return self.targets == "all"
