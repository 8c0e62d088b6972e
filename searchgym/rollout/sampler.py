"""Interface of samplers: token ids in, token ids and log-probabilities out. Imports no torch; samplers have modules."""

from __future__ import annotations

import importlib
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.options import Kind, name_of

Dtype = Literal["float32", "bfloat16", "float64"]
"""Type of a model's weights in memory."""
PHASES: Final = ("draw", "policy", "critic")
"""Phases of a step: episodes are sampled, the policy is updated, the critic is updated."""
LIVE_LOGITS: Final = 3
"""Number of float32 copies of a batch's logits that exist at once: logits, log-softmax and a third for the choice."""
CONTEXT: Final = 0.6
"""GiB that the CUDA context of a process takes on a GPU."""

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


@dataclass(frozen=True, slots=True, eq=False)
class SampledKey:
    """A model key of a run, as its sampler sees it."""

    name: str
    base: str
    """Model that its weights start from; of an adapter that is trained further, the adapter's base."""
    trained: bool
    """False if its weights never change."""
    model: Any = None
    """The model in transformers, which the sampler copies; None in a plan."""
    tokenizer: Any = None
    """Its tokenizer; None in a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """What the samplers of a run have in common."""

    weights: str = "float32"
    """Type of the learner's weights."""
    autocast: str | None = None
    """Type of the learner's matrix products, where it is another one."""
    requests: int = 64
    """Maximum number of concurrent requests."""
    adapter: Mapping[str, Any] | None = None
    """Contents of peft's ``adapter_config.json`` for the keys that are trained; None where whole models are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the keys that share an engine need, for the plan of memory."""

    run: SampledRun
    parameters: int
    """Number of the model's weights."""
    per_token: int
    """Keys and values of a token: two per layer and per unit of their width."""
    vocabulary: int
    whole: float
    """GiB of a version of the whole model on its way to the sampler."""
    adapter: float
    """GiB of a version of the adapters on their way to it; 0 without adapters."""
    trained: bool
    """True if any of the keys is trained, whose updates wake an engine that sleeps."""


def bytes_of(dtype: str) -> int:
    """Returns the bytes of a number of a type."""
    return {"bfloat16": 2, "float64": 8}.get(dtype, 4)


@dataclass(frozen=True, slots=True)
class Part:
    """One item that takes memory on a device."""

    device: str
    """``cpu``, or ``cuda:0`` and so on."""
    what: str
    gib: float
    phases: tuple[str, ...] = PHASES
    """Phases in which the memory is in use."""


@dataclass(frozen=True, slots=True)
class Samplers:
    """The samplers of a run, one per key, and their engines."""

    by_key: Mapping[str, Sampler]
    """Samplers by the names of their keys."""
    engines: Sequence[Any] = ()
    """Engines apart from the samplers, which `close` closes; several samplers may share an engine."""
    resting: Sequence[Any] = ()
    """Engines that free their GPU while models learn, by ``sleep(level)``; an update of their weights wakes them."""
    level: int = 0
    """Level of their sleep."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerKind(Kind):
    """What samples episodes: one class per sampling engine, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.rollout.samplers"
    noun: ClassVar = "sampler"
    back_end: ClassVar[str]
    """Module with `open_samplers` and `load_sampler`, imported when something is sampled."""
    exact: ClassVar[bool] = False
    """True if a run samples the same tokens again, bit for bit."""
    starts_from_adapters: ClassVar[bool] = False
    """True if a key that is trained as a whole, or not at all, may start from an adapter."""
    rounds_adapters: ClassVar[bool] = False
    """True if adapters are merged into weights of the learner's type, in which small updates may be lost."""

    def chosen(self, ask: bool = True) -> SamplerKind:
        """Returns the sampler that samples: itself, unless its class chooses between others.

        Args:
            ask: Whether to check what is installed here; if not (in a plan for another machine), all is assumed.

        Raises:
            UsageError: A library is not installed.
        """
        return self

    @property
    def engines(self) -> int:
        """Number of engines in processes of their own, which a launcher may start elsewhere as servers."""
        return 0

    @property
    def gpus_each(self) -> int:
        """Number of GPUs of each engine."""
        return 0

    @property
    def frees_gpu(self) -> bool:
        """True if its engines leave their GPUs to the learner while it learns."""
        return False

    def computed_in(self, run: SampledRun) -> str:
        """Returns the number type of the sampler's matrix products. Default: the learner's."""
        return run.autocast or run.weights

    def separate(self, gpus: bool | None = None) -> bool:
        """Tells whether adapters stay beside their base. Default: the sampler gets whole models.

        Args:
            gpus: Whether it samples on GPUs. Default: as on this machine.
        """
        return False

    def together(self, keys: Iterable[SampledKey], adapters: bool, gpus: bool | None = None) -> list[list[SampledKey]]:
        """Returns the keys in lists, one for each copy of weights that they sample from. Default: each has its own.

        Args:
            keys: The run's keys.
            adapters: Whether adapters are trained.
            gpus: See `separate`.
        """
        return [[key] for key in keys]

    def memory(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[Part]:
        """Yields the items that take memory for keys that share a copy of weights. Default: none are known.

        Args:
            need: Sizes of the model.
            gpus: Number of GPUs.
            gpu_gib: GiB of memory of each.

        Raises:
            UsageError: GPUs are missing, or their memory does not suffice.
        """
        return ()

    def fitted(self, gpus: int) -> dict[str, Any]:
        """Returns options with which it runs on a number of GPUs, where it asks for more. Default: none."""
        return {}

    def lighter(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[dict[str, Any]]:
        """Yields options with which it takes less memory, the ones that cost least first. Default: none.

        Args:
            need: Sizes of the model.
            gpus: Number of GPUs.
            gpu_gib: GiB of memory of each.
        """
        return ()

    def for_adapters(self) -> dict[str, Any]:
        """Returns options with which adapters on a bfloat16 base can be sampled. Default: none are needed."""
        return {}

    def server(self) -> SamplerKind:
        """Returns the options of one server, for a launcher."""
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def served(self, addresses: Sequence[str]) -> SamplerKind:
        """Returns the options of a training that samples from servers, which a launcher has started."""
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def label(self, dtype: str) -> str:
        """Returns its name in records of evaluations, whose scores may differ by rounding from another's."""
        return f"{name_of(self)} {dtype}"

    def open(self, keys: Sequence[SampledKey], run: SampledRun) -> Samplers:
        """Starts a sampler for each key of a run.

        Samplers hold their own copy of the weights, which changes only when a version is published.

        Raises:
            SearchGymError: An engine does not start.
        """
        return importlib.import_module(self.back_end).open_samplers(self, keys, run)  # type: ignore[no-any-return]

    def load(
        self, folder: Path, dtype: str, *, requests: int, max_context: int | None, share: float
    ) -> tuple[Sampler, Any]:
        """Loads a model in a folder for an evaluation; returns its sampler and its tokenizer.

        Args:
            folder: Folder in Hugging Face format.
            dtype: Type of weights and computation.
            requests: Maximum number of concurrent requests.
            max_context: Maximum tokens of request and response. Default: the model's limit.
            share: Share of the device's memory that it may take.

        Raises:
            SearchGymError: The model cannot be loaded, or its engine does not start.
        """
        raise NotImplementedError(f"{type(self).__name__} loads no folders")


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
