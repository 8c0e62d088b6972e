"""Method ``supervised``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from typing_extensions import override

from searchgym.rollout.storage import read_episodes
from searchgym.train.algorithms.predictable import DropOptions
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.methods.rejection import Rejection
from searchgym.train.recipe.method import Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised(Likelihood):
    """Trains by maximum likelihood on demonstrations."""

    demonstrations: str
    """Path of the episode file with the demonstrations."""
    batch: Annotated[int, Ge(1)] = 64
    """Number of demonstrations per step."""
    drop: DropOptions | None = None
    """Which share of predictable tokens is left out of the loss, such as ``{most: 0.5}``. Default: none."""

    @override
    def problems(self) -> Iterable[str]:
        if self.drop is not None and self.every_token:
            yield "drop leaves out tokens that the model wrote, and targets is all: choose one"

    @override
    def dropped(self, step: int, steps: int) -> float:
        return 0.0 if self.drop is None else self.drop.share(step, steps)

    @property
    @override
    def demonstrated(self) -> int:
        return self.batch

    @override
    def samples(self) -> list[Sample]:
        return [
            s for episode in read_episodes(Path(self.demonstrations)) for s in samples_from(episode, "demonstration")
        ]

    @override
    def on_episodes(self) -> Rejection:
        return Rejection(targets=self.targets, min_reward=-1.0)
