"""A retriever whose noise and distractors follow the stages of a curriculum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from searchgym.records import Hit
from searchgym.retrieval.kinds.noise import NoiseRetriever
from searchgym.retrieval.retriever import Retriever
from searchgym.retrieval.schedule import random_numbers
from searchgym.retrieval.wrapper import Wrapper
from searchgym.train.curriculum.stages import StageOptions


class StagedRetriever(NoiseRetriever):
    """A retriever that makes its hits harder to use, as the stage of the training step says.

    `StageOptions.noise` is the probability that all hits of a query are replaced by random passages, as in
    `NoiseRetriever`. Where they are not, the last `StageOptions.distractors` of its hits make room for random passages
    at random ranks. What a query gets depends on (seed, step, query) alone. In validation nothing is replaced.

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
        """Sets noise and distractors for a step of training, or none for validation."""
        Wrapper.at_step(self, step, steps)
        stage = StageOptions() if step is None else self._stage_at(step)
        self._now, self._distractors = (-1 if step is None else step, stage.noise), stage.distractors

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on, besides the corpus and the step."""
        return {"kind": "staged", "seed": self.seed} | Wrapper.identity(self)

    def _kept(self, query: str, hits: list[Hit]) -> list[Hit]:
        """Returns the hits of a query without noise, with the stage's distractors among them."""
        kept = max(len(hits) - self._distractors, 0)
        if kept == len(hits):
            return hits
        numbers = random_numbers(self.seed, self._now[0], f"distractors {query}")
        others = self._others(hits, len(hits) - kept, numbers)
        passages = [hit.passage for hit in hits[:kept]]
        for other in others:
            passages.insert(next(numbers) % (len(passages) + 1), other)
        scores: Sequence[float] = [hit.score for hit in hits]
        return [Hit(passage, score) for passage, score in zip(passages, scores, strict=False)]
