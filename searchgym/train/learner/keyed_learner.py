"""A learner of several model keys: each learns from the calls that its roles made, by its own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.learner import Learner
from searchgym.train.learner.trained_model import Flat, Metrics

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

SUMS: Final = ("tokens_trained", "tokens_read", "tokens_padded", "micro_batches", "updates")
"""Metrics that add up over keys."""


class KeyedLearner:
    """`Learner` over several others.

    Args:
        learners: Key to its learner.
        tokenizers: Key to its tokenizer, saved beside its weights.
    """

    def __init__(self, learners: Mapping[str, Learner], tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
        self.learners, self._tokenizers = dict(learners), tokenizers

    @property
    def version(self) -> int:
        """Updates of the key that was updated most."""
        return max(learner.version for learner in self.learners.values())

    def version_of(self, key: str) -> int:
        """See `Learner`."""
        return self.learners[key].version

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """See `Learner`."""
        return self._each(samples, lambda learner, own: learner.prepare(own))

    def logp(self, samples: Sequence[Sample]) -> Flat:
        """See `Learner`."""
        return self._each(samples, lambda learner, own: learner.logp(own))

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates every key that has samples.

        Returns:
            Metrics of each key, its name before the metric's (``learner/KEY/loss``, ``critic/KEY/loss``); sums of what
            adds up, and the largest memory.
        """
        found: dict[str, Metrics] = {}
        for key, places in self._places(samples).items():
            found[key] = self.learners[key].learn([samples[i] for i in places], step)
        metrics: Metrics = {name: sum(own.get(name, 0.0) for own in found.values()) for name in SUMS}
        metrics["memory/learn"] = max(own.get("memory/learn", 0.0) for own in found.values())
        for key, own in found.items():
            for name, value in own.items():
                kind, slash, rest = name.partition("/")
                if kind != "memory":
                    metrics[f"{kind}/{key}/{rest}" if slash else f"learner/{key}/{name}"] = value
        return metrics

    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the weights of all keys, each name behind its key's and a slash."""
        every = {key: learner.weights(adapter) for key, learner in self.learners.items()}
        return {f"{key}/{name}": weight for key, own in every.items() for name, weight in own.items()}

    def weights_of(self, key: str, adapter: bool = False) -> Mapping[str, Tensor]:
        """See `Learner`."""
        return self.learners[key].weights(adapter)

    def save(self, folder: Path) -> None:
        """Writes each key's models, optimizers and tokenizer to a folder of its name."""
        for key, learner in self.learners.items():
            (folder / key).mkdir(exist_ok=True)
            learner.save(folder / key)
            self._tokenizers[key].save_pretrained(folder / key)

    def load(self, folder: Path) -> None:
        """See `Learner`."""
        for key, learner in self.learners.items():
            learner.load(folder / key)

    def close(self) -> None:
        """See `Learner`."""
        for learner in self.learners.values():
            learner.close()

    def _places(self, samples: Sequence[Sample]) -> dict[str, list[int]]:
        """Returns the places of each key's samples; keys without any are left out."""
        places: dict[str, list[int]] = {}
        for i, sample in enumerate(samples):
            places.setdefault(sample.model_key, []).append(i)
        return {key: places[key] for key in self.learners if key in places}

    def _each(self, samples: Sequence[Sample], ask: Callable[[Learner, list[Sample]], Sequence[Any]]) -> list[Any]:
        """Asks each key's learner about its samples; returns the answers in the order of the samples."""
        found: dict[int, Any] = {}
        for key, places in self._places(samples).items():
            found |= zip(places, ask(self.learners[key], [samples[i] for i in places]), strict=True)
        return [found[i] for i in range(len(samples))]
