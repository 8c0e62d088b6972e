"""Kinds of samplers: what a recipe chooses, what a plan counts, and what a run starts. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from searchgym.options import Kind, name_of
from searchgym.rollout.sampler import Sampler, Samplers

PHASES: Final = ("draw", "policy", "critic")
"""Phases of a step: episodes are sampled, the policy is updated, the critic is updated."""
LIVE_LOGITS: Final = 3
"""Number of float32 copies of a batch's logits that exist at once: logits, log-softmax and a third for the choice."""
CONTEXT: Final = 0.6
"""GiB that the CUDA context of a process takes on a GPU."""


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
