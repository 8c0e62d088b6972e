"""Interface of samplers: token ids in, token ids and log-probabilities out. Imports no torch; samplers have modules."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from searchgym.errors import UsageError
from searchgym.options import Options

Dtype = Literal["float32", "bfloat16", "float64"]
"""Type of a model's weights in memory."""
SamplerName = Literal["transformers", "vllm", "auto"]
"""How models are sampled; ``auto`` is vLLM if a tested version is installed, else transformers."""

Finish = Literal["eos", "stop", "length", "context"]
"""Why a response ended. ``eos``: an end id was sampled; ``stop``: a stop string is complete; ``length``: `max_tokens`
was reached; ``context``: the model's context is full. If several hold at once, the first in this list is reported."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one response.

    Raises:
        UsageError: A value is out of its range.
    """

    max_tokens: int = 256
    """Maximum length of the response in tokens, at least 1."""
    temperature: float = 1.0
    """Temperature, by which logits are divided; 0 takes the likeliest token (`top_p` is then ignored)."""
    top_p: float = 1.0
    """Probability mass of nucleus sampling: tokens are drawn from the smallest set of likely tokens that holds it."""
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
    """(T,) int32 token ids of everything the model sees; T at least 1."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters."""
    seed: int = 0
    """Seed of the response's random numbers, at least 0; they do not depend on the rest of the batch."""
    episode: str = ""
    """Id of the episode; its requests share a prefix, so several engines keep them on one."""

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
    temperature 0 they are those at temperature 1 without top-p."""
    finish: Finish
    """Why the response ended."""
    version: int = 0
    """Policy version of the weights that the response was sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(Options):
    """Set-up of vLLM engines: memory, GPUs, replicas and servers."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and computation; ``auto`` is the learner's autocast type, or its weight type without autocast."""
    prefix_caching: bool = True
    """Whether to keep keys and values of earlier requests for requests that continue them."""
    gpu_share: Annotated[float, Interval(gt=0, le=1)] = 0.4
    """Fraction of a GPU's memory that the engine takes, weights included."""
    cache_gib: Annotated[int, Ge(1)] = 4
    """Memory for keys and values in GiB if the engine runs on a CPU."""
    max_context: Annotated[int, Ge(1)] | None = None
    """Maximum tokens of request and response. Default: the model's limit."""
    tensor_parallel: Annotated[int, Ge(1)] = 1
    """Number of GPUs over which one engine is split."""
    replicas: Annotated[int, Ge(1)] = 1
    """Number of engines, each on `tensor_parallel` GPUs; an episode stays with one of them."""
    gpus: list[int] | None = None
    """Indices of the GPUs for the engines, in this order. Default: all GPUs."""
    servers: list[str] | None = None
    """Addresses of vLLM servers to use instead of local engines, such as ``http://10.0.0.2:8000``; see
    `searchgym.rollout.vllm.server`."""
    transfer: Literal["folder", "gloo", "nccl"] = "folder"
    """How new weights reach `servers`: through a folder that both machines see, or through a process group over the
    network, between main memories (``gloo``) or from this process's first GPU to theirs (``nccl``, which has not been
    run). A group sends no separate adapters."""
    shared: str | None = None
    """Folder that this machine and those of `servers` mount under the same path; new weights go through it. Default:
    this machine's memory, for servers on it."""
    stall: Annotated[float, Ge(0.1)] = 60.0
    """Seconds without a sign of life after which a server is given up until the next weights."""
    sleep: Annotated[int, Interval(ge=0, le=2)] = 0
    """Sleep level while the learner uses the GPU: 0 keeps the engine awake, 1 moves its weights to main memory, 2
    drops them."""
    eager: bool = False
    """Whether to run without CUDA graphs: starts faster, samples slower."""
    adapters: Literal["auto", "separate", "merged"] = "auto"
    """Whether an adapter stays separate, so that several share an engine, or is merged into its base, one engine each.
    ``auto`` merges in engines on a CPU: vLLM's layers for adapters read their matrices anew for every token there."""


Key = TypeVar("Key")
Pull = Callable[[], Sequence[tuple[Key, SampleRequest]]]
"""Function that returns new requests, each with a key."""
Deliver = Callable[[Key, Sampled], None]
"""Function that receives a finished response under its request's key."""


class Sampler(typing.Protocol):
    """Interface of an object that samples responses from one model."""

    @property
    def max_context(self) -> int:
        """Maximum tokens of a request and its response together."""
        ...

    @property
    def version(self) -> int:
        """Policy version of the weights that new requests are sampled from."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        ...

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Loads new weights once the current requests are done.

        Args:
            state: Weights by name.
            version: Policy version of these weights.
        """
        ...

    def forget(self) -> None:
        """Clears cached keys and values, so that earlier requests do not affect later responses even by rounding."""
        ...

    def close(self) -> None:
        """Stops the processes and threads that the sampler started."""
        ...


@typing.runtime_checkable
class StreamingSampler(Sampler, typing.Protocol):
    """Interface of a sampler that accepts new requests while others are being sampled."""

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples until no request is left.

        Args:
            pull: Called repeatedly; returns the requests that are new, each with a key.
            deliver: Called with the key and the response of each request as soon as it is done.
        """
        ...


@typing.runtime_checkable
class SpreadSampler(Sampler, typing.Protocol):
    """Interface of a sampler on one or several engines, each of which can be asked on purpose."""

    def pins(self) -> dict[str, str]:
        """Returns the names of the engines, each by an episode id whose requests it gets as long as it lives."""
        ...


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


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns uniform random numbers, one per position of a response, from which its tokens are chosen.

    Number i depends on the seed and on i alone, not on `count`.

    Args:
        seed: Seed of the request, at least 0.
        count: Number of positions.

    Returns:
        (count,) float64 in [0, 1).
    """
    return np.random.default_rng(seed).random(count)


class StopMatcher:
    """Detects, token by token, when the text of a response contains a stop string.

    Only the last tokens are decoded, and only if the newest one can have completed a stop string: if its text holds a
    stop string's last character, or a character that is not whole yet.

    Args:
        decode: Token ids to text, special tokens included.
        stop: Stop strings; if empty, nothing ever matches.
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
            ids: Token ids of the response so far, at least one.
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
