"""Interface of samplers, which map token ids to token ids and log-probabilities. Imports no torch."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError

Dtype = Literal["float32", "bfloat16", "float64"]
"""Type of a model's weights in memory."""

Finish = Literal["eos", "stop", "length", "context"]
"""Reason why a response ended. ``eos``: an end id was sampled; ``stop``: a stop string is complete; ``length``:
`max_tokens` was reached; ``context``: the model's context is full. If several apply, the first in this list is
reported."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one response.

    Raises:
        UsageError: A value is out of its range.
    """

    max_tokens: int = 256
    """Maximum length of the response in tokens, at least 1."""
    temperature: float = 1.0
    """Temperature, the divisor of logits; 0 always chooses the most likely token and ignores `top_p`."""
    top_p: float = 1.0
    """Probability mass of nucleus sampling: tokens are sampled from the smallest set of most likely tokens with this
    mass."""
    stop: tuple[str, ...] = ()
    """Strings that end a response. If one ends inside a token, the whole token is kept."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be a number from 0 up, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be in (0, 1], got {self.top_p}")
        if not isinstance(self.stop, tuple) or not all(self.stop):
            raise UsageError(f"stop must be a tuple of non-empty strings, got {self.stop!r}")


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Request for one response of a model."""

    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids of the whole context; T is at least 1."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters."""
    seed: int = 0
    """Seed of the response's random numbers, at least 0; the numbers do not depend on the rest of the batch."""
    episode: str = ""
    """Id of the episode. Requests of an episode share a prefix, so they are all sent to the same engine."""

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or not len(self.ids):
            raise UsageError(f"a request needs a row of at least one token id, got shape {self.ids.shape}")
        if self.seed < 0:
            raise UsageError(f"a request's seed must be 0 or more, got {self.seed}")


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One sampled response."""

    ids: npt.NDArray[np.int32]
    """(N,) int32 token ids as sampled, including the end id if any; N is 0 only if the context was already full."""
    logp: npt.NDArray[np.float32]
    """(N,) float32 natural-log probabilities under the sampling distribution, after temperature and top-p. At
    temperature 0 they are the log-probs at temperature 1 without top-p."""
    finish: Finish
    """Reason why the response ended."""
    version: int = 0
    """Version of the weights that the response was sampled from."""


Key = TypeVar("Key")
Pull = Callable[[], Sequence[tuple[Key, SampleRequest]]]
"""Function that returns new requests, each with a key."""
Deliver = Callable[[Key, Sampled], None]
"""Function that receives a finished response under its request's key."""


class Sampler(typing.Protocol):
    """Interface of an object that samples responses from one model."""

    @property
    def max_context(self) -> int:
        """Maximum number of tokens of a request and its response together."""
        ...

    @property
    def version(self) -> int:
        """Version of the weights that new requests are sampled from."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        ...

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Loads new weights once the current requests are done.

        Args:
            state: Weights by name.
            version: Version of these weights.
        """

    def forget(self) -> None:
        """Clears cached keys and values, so that earlier requests do not affect the rounding of later responses."""

    def close(self) -> None:
        """Stops the processes and threads that the sampler started."""


@typing.runtime_checkable
class StreamingSampler(Sampler, typing.Protocol):
    """Interface of a sampler that accepts new requests while others are being sampled."""

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples until no request is left.

        Args:
            pull: Called repeatedly; returns new requests, each with a key.
            deliver: Called with the key and the response of each request as soon as it is done.
        """


@typing.runtime_checkable
class SpreadSampler(Sampler, typing.Protocol):
    """Interface of a sampler on one or several engines, each of which can be selected by an episode id."""

    def pins(self) -> dict[str, str]:
        """Returns the names of the engines by episode id; requests with that id go to the engine while it lives."""
        ...


@typing.runtime_checkable
class FingerprintedSampler(Sampler, typing.Protocol):
    """Interface of a sampler that can tell which weights it has."""

    def fingerprints(self, state: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Returns the fingerprint that the given weights have in the sampler, and that of the weights in use.

        Args:
            state: Weights as passed to `update`.

        Returns:
            (expected, actual) by the name of each engine whose weights can be read; "" stands for no weights.
        """
        ...


class RestingEngine(typing.Protocol):
    """Interface of an engine that several samplers may share."""

    def sleep(self, level: int) -> None:
        """Frees the GPU's memory until new weights arrive."""

    def close(self) -> None:
        """Stops the engine."""


@dataclass(frozen=True, slots=True)
class Samplers:
    """The samplers of a run, one per model key, and their engines."""

    by_key: Mapping[str, Sampler]
    """Samplers by the name of the model key."""
    engines: Sequence[RestingEngine] = ()
    """Engines that `close` ends after the samplers; several samplers may share an engine."""
    resting: Sequence[RestingEngine] = ()
    """Engines that free their GPU while models learn; an update of their weights wakes them."""
    level: int = 0
    """Sleep level of the resting engines; see `Vllm.sleep`."""

    def rest(self) -> None:
        """Makes the engines free their GPUs for the learner until weights are published."""
        for engine in self.resting:
            engine.sleep(self.level)

    def close(self) -> None:
        """Closes the samplers and ends the engines."""
        with ExitStack() as ended:
            for sampler in self.by_key.values():
                ended.callback(sampler.close)
            for engine in self.engines:  # runs before the samplers close, even if requests are pending
                ended.callback(engine.close)


def sample_all(sampler: StreamingSampler, requests: Sequence[SampleRequest]) -> list[Sampled]:
    """Samples a fixed list of requests with a streaming sampler; returns one response per request, in order."""
    todo: list[tuple[int, SampleRequest]] = list(enumerate(requests))
    replies: dict[int, Sampled] = {}

    def pull() -> list[tuple[int, SampleRequest]]:
        new = todo.copy()
        todo.clear()
        return new

    sampler.stream(pull, replies.__setitem__)
    return [replies[number] for number in range(len(requests))]
