"""A learner for several model keys: each key's model learns from its roles' calls, with a separate optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from searchgym.train.algorithms.estimator import members_of
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import Flat, Metrics
from searchgym.train.learner.learner import Learner
from searchgym.train.learner.trained_model import TOTALS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

SUMS: Final = (*TOTALS, "updates")
"""Names of the metrics that are summed over keys."""


class KeyedLearner(Learner):
    """Learner that passes each sample to the learner of its model key.

    Args:
        learners: Learner of each key.
        tokenizers: Tokenizer of each key, saved with the key's weights.
    """

    def __init__(self, learners: Mapping[str, Learner], tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
        self.learners, self._tokenizers = dict(learners), tokenizers

    @property
    @override
    def version(self) -> int:
        """Largest number of updates made to any key."""
        return max(learner.version for learner in self.learners.values())

    @override
    def version_of(self, key: str) -> int:
        return self.learners[key].version

    @override
    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        return self._each(samples, lambda learner, mine: learner.prepare(mine))

    @override
    def logp(self, samples: Sequence[Sample]) -> Flat:
        return self._each(samples, lambda learner, mine: learner.logp(mine))

    @override
    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates every key that has samples.

        Returns:
            The metrics of each key, with the key in the name (``learner/KEY/loss``, ``critic/KEY/loss``); the sums of
            `SUMS` over keys; and the largest peak memory.
        """
        by_key: dict[str, Metrics] = {}
        for key, indices in self._indices(samples).items():
            by_key[key] = self.learners[key].learn([samples[i] for i in indices], step)
        metrics: Metrics = {name: sum(of_key.get(name, 0.0) for of_key in by_key.values()) for name in SUMS}
        metrics["memory/learn"] = max(of_key.get("memory/learn", 0.0) for of_key in by_key.values())
        for key, of_key in by_key.items():
            for name, value in of_key.items():
                kind, slash, rest = name.partition("/")
                if kind != "memory":
                    metrics[f"{kind}/{key}/{rest}" if slash else f"learner/{key}/{name}"] = value
        return metrics

    @override
    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the weights of all keys by ``KEY/NAME``; only the adapters' weights with `adapter`."""
        every = {key: learner.weights(adapter) for key, learner in self.learners.items()}
        return {f"{key}/{name}": weight for key, state in every.items() for name, weight in state.items()}

    @override
    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        return self.learners[key].weights(adapter)

    @override
    def save(self, folder: Path) -> None:
        """Writes each key's models, optimizers and tokenizer to a subfolder named after the key."""
        for key, learner in self.learners.items():
            (folder / key).mkdir(exist_ok=True)
            learner.save(folder / key)
            self._tokenizers[key].save_pretrained(folder / key)

    @override
    def load(self, folder: Path) -> None:
        for key, learner in self.learners.items():
            learner.load(folder / key)

    @override
    def close(self) -> None:
        for learner in self.learners.values():
            learner.close()

    def _indices(self, samples: Sequence[Sample]) -> dict[str, list[int]]:
        """Returns the indices of samples by key; keys without samples are left out."""
        members = members_of([sample.model_key for sample in samples])
        return {key: members[key] for key in self.learners if key in members}

    def _each(self, samples: Sequence[Sample], ask: Callable[[Learner, list[Sample]], Sequence[Any]]) -> list[Any]:
        """Calls `ask` with each key's learner and samples; returns the results in the order of the samples."""
        results: dict[int, Any] = {}
        for key, indices in self._indices(samples).items():
            results |= zip(indices, ask(self.learners[key], [samples[i] for i in indices]), strict=True)
        return [results[i] for i in range(len(samples))]
