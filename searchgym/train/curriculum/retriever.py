"""A retriever whose noise and distractors follow the stages of a curriculum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from searchgym.records import Hit
from searchgym.retrieval.kinds.noise import NoiseRetriever
from searchgym.retrieval.retriever import Retriever
from searchgym.retrieval.wrapper import Wrapper
from searchgym.train.curriculum.stages import StageOptions


class StagedRetriever(NoiseRetriever):
    """A retriever that adds noise to its hits, according to the curriculum's stage of the training step.

    `StageOptions.noise` is the probability that all hits of a query are replaced by random passages, as in
    `NoiseRetriever`. Otherwise the last `StageOptions.distractors` of its hits are replaced by random passages, at
    random ranks. The result depends on (seed, step, query) alone. In validation nothing is replaced.

    Args:
        inner: Wrapped retriever, whose corpus is on this machine.
        stage_at: Returns the stage of a training step.
        seed: Seed of the random draws.

    Raises:
        UsageError: `inner` has no corpus on this machine.
    """

    def __init__(self, inner: Retriever, stage_at: Callable[[int], StageOptions], seed: int) -> None:
        super().__init__(inner, start=0.0, end=0.0, seed=seed)
        self._stage_at, self._distractors = stage_at, 0

    def at_step(self, step: int | None, steps: int) -> None:
        """Sets noise and distractors for a step of training; turns both off for validation (step None)."""
        stage = StageOptions() if step is None else self._stage_at(step)
        self.schedule, self._distractors = replace(self.schedule, start=stage.noise, end=stage.noise), stage.distractors
        super().at_step(step, steps)

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, besides the corpus and the step."""
        return {"kind": "staged", "seed": self.schedule.seed} | Wrapper.identity(self)

    def _changed(self, query: str, hits: list[Hit], k: int) -> list[Hit]:
        noisy = super()._changed(query, hits, k)
        remaining = max(len(hits) - self._distractors, 0)
        if noisy is not hits or remaining == len(hits):
            return noisy
        passages = self._among(f"distractors {query}", hits, remaining, len(hits) - remaining)
        return [Hit(passage, hit.score) for passage, hit in zip(passages, hits, strict=False)]
