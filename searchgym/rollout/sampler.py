"""What a sampler is: token ids in; token ids and log-probs out. Needs no torch; samplers live in their own modules."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError

Finish = Literal["eos", "stop", "length", "context"]
"""Why a response ended: an end id was sampled; a stop string is complete; `max_tokens`; the model's context is full.
Where several hold at once, the first of this list is said."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Raises:
        UsageError: A value is out of its range.
    """

    max_tokens: int = 256
    """Most tokens of a response, at least 1."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token (`top_p` is then ignored)."""
    top_p: float = 1.0
    """Nucleus: tokens are drawn from the smallest set of likeliest ones that holds at least this probability."""
    stop: tuple[str, ...] = ()
    """Texts that end a response. A stop string may end inside a token: the whole token is kept."""

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
    """One generation that is asked for."""

    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids of everything the model sees; T at least 1."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    """From 0 up; makes the noise of this request alone, whatever else is in the batch."""
    episode: str = ""
    """Requests of one episode continue each other: who has several engines keeps them together."""

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or not len(self.ids):
            raise UsageError(f"a request needs a row of at least one token id, got shape {self.ids.shape}")
        if self.seed < 0:
            raise UsageError(f"a request's seed must be 0 or more, got {self.seed}")


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One response."""

    ids: npt.NDArray[np.int32]
    """(N,) int32 token ids as sampled, the end id included if one was; N is 0 only if the context was full before."""
    logp: npt.NDArray[np.float32]
    """(N,) float32 natural-log probabilities under the distribution that was drawn from: divided by the temperature,
    cut by top-p. At temperature 0 they are those of temperature 1, uncut."""
    finish: Finish
    version: int = 0
    """Policy version of the weights that it was sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How an engine is set up."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and computation; auto: the learner's, or its autocast's."""
    prefix_caching: bool = True
    """Keep keys and values of earlier requests for those that continue them."""
    gpu_share: float = 0.4
    """Share of a GPU's memory that the engine takes, weights included."""
    cache_gib: int = 4
    """GiB for keys and values where the engine runs on a CPU."""
    max_context: int | None = None
    """Most tokens of request and response; the model's own limit if not given."""
    tensor_parallel: int = 1
    """GPUs that share one engine."""
    replicas: int = 1
    """Engines beside each other, each on `tensor_parallel` GPUs; an episode stays with one of them."""
    gpus: list[int] | None = None
    """Numbers of the GPUs that the engines take, in this order; all that there are if not given."""
    servers: list[str] | None = None
    """Addresses of servers that sample, in the place of engines of this process: ``http://127.0.0.1:8000``; see
    `searchgym.rollout.vllm.server`."""
    sleep: int = 0
    """Give the GPU to the learner while it learns: 1 keeps the weights in the machine's memory, 2 drops them."""
    eager: bool = False
    """Do without CUDA graphs: starts faster, samples slower."""


Key = TypeVar("Key")
Pull = Callable[[], Sequence[tuple[Key, SampleRequest]]]
Deliver = Callable[[Key, Sampled], None]


class Sampler(typing.Protocol):
    """Anything that continues token ids; one object per model."""

    @property
    def max_context(self) -> int:
        """Most tokens of a request and its response together."""
        ...

    @property
    def version(self) -> int:
        """Policy version of the weights that new requests are sampled from."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        ...

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Loads weights (name to tensor) that later responses are sampled from; requests under way end before."""
        ...

    def forget(self) -> None:
        """Forgets what it computed for earlier requests: no bit of later responses depends on them then."""
        ...

    def close(self) -> None:
        """Ends what the sampler started."""
        ...


@typing.runtime_checkable
class StreamingSampler(Sampler, typing.Protocol):
    """A sampler that lets requests join those that are under way."""

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples until nothing is left.

        Args:
            pull: Called again and again: requests that are new, each with a key.
            deliver: Called with the key and the response of each request, as soon as it has ended.
        """
        ...


def sample_all(sampler: StreamingSampler, requests: Sequence[SampleRequest]) -> list[Sampled]:
    """Streams requests that are all there; returns one response per request, in the same order."""
    todo: list[tuple[int, SampleRequest]] = list(enumerate(requests))
    replies: dict[int, Sampled] = {}

    def pull() -> list[tuple[int, SampleRequest]]:
        found = todo.copy()
        todo.clear()
        return found

    sampler.stream(pull, replies.__setitem__)
    return [replies[number] for number in range(len(requests))]


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns the noise of a request: one number per position of its response.

    Number i depends on the seed and on i alone, so it does not matter how many are asked for.

    Args:
        seed: The request's seed, from 0 up.
        count: Positions.

    Returns:
        (count,) float64 in [0, 1).
    """
    return np.random.default_rng(seed).random(count)


class StopMatcher:
    """Tells after each token whether a stop string is complete in the text of a response.

    Only the last tokens are decoded, and only if the newest one can have completed a stop string: if its text holds a
    stop string's last character, or a character that is not whole yet.

    Args:
        decode: Token ids to text, special tokens included.
        stop: The stop strings; none: nothing ever matches.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str]) -> None:
        self._decode, self._stop = decode, tuple(stop)
        # A token has at least one byte, so a stop string spans at most as many tokens as it has bytes. One more,
        # because some tokenizers drop a blank in front of the first token that they decode.
        self._window = 1 + max((len(text.encode("utf-8", "surrogatepass")) for text in stop), default=0)
        self._last = {text[-1] for text in stop} | {"\N{REPLACEMENT CHARACTER}"}
        self._always = any(text[-1].isspace() for text in stop)
        self._may_complete: dict[int, bool] = {}

    def complete(self, ids: Sequence[int]) -> bool:
        """Returns whether the response, which held no stop string before its last token, holds one now.

        Args:
            ids: The response so far, at least one token.
        """
        if not self._stop or not self._can_complete(ids[-1]):
            return False
        tail = self._decode(list(ids[-self._window :]))
        return any(text in tail for text in self._stop)

    def _can_complete(self, token: int) -> bool:
        known = self._may_complete.get(token)
        if known is None:
            text = self._decode([token])
            known = self._may_complete[token] = self._always or any(char in text for char in self._last)
        return known
