"""Kinds of samplers: their options, their memory estimates, and how a run starts them. Imports no torch."""

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
"""Number of float32 copies of a batch's logits in memory at once: logits, log-softmax, and one for sampling."""
CONTEXT: Final = 0.6
"""Memory of a process's CUDA context on a GPU, in GiB."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledKey:
    """A model key of a run, described for its sampler."""

    name: str
    base: str
    """Initial model of the weights; for an adapter whose training continues, the adapter's base."""
    trained: bool
    """False if the weights never change."""
    model: Any = None
    """The model in transformers, which the sampler copies; None in a plan."""
    tokenizer: Any = None
    """Tokenizer of the key; None in a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """Settings that all samplers of a run share."""

    weights: str = "float32"
    """Type of the learner's weights."""
    autocast: str | None = None
    """Type of the learner's matrix products; None if it equals `weights`."""
    requests: int = 64
    """Maximum number of concurrent requests."""
    adapter: Mapping[str, Any] | None = None
    """Contents of peft's ``adapter_config.json`` for the trained keys; None if whole models are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Sizes for the memory estimate of model keys that share an engine."""

    run: SampledRun
    parameters: int
    """Number of parameters of the model."""
    head: int
    """Number of parameters of the output matrix."""
    tied: bool
    """True if the embeddings are the output matrix."""
    per_token: int
    """Number of cached values per token: keys and values of all layers."""
    vocabulary: int
    whole: float
    """Memory, in GiB, of the whole model while it is sent to the sampler."""
    adapter: float
    """Memory, in GiB, of the adapters while they are sent to the sampler; 0 without adapters."""
    trained: bool
    """True if any of the keys is trained, so that updates wake a sleeping engine."""


def bytes_of(dtype: str) -> int:
    """Returns the number of bytes of a number type."""
    return {"bfloat16": 2, "float64": 8}.get(dtype, 4)


@dataclass(frozen=True, slots=True)
class Part:
    """One item that uses memory on a device."""

    device: str
    """``cpu``, or ``cuda:0`` and so on."""
    what: str
    gib: float
    phases: tuple[str, ...] = PHASES
    """Phases in which the memory is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerKind(Kind):
    """Base class of sampling engines: one subclass each, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.rollout.samplers"
    noun: ClassVar = "sampler"
    back_end: ClassVar[str]
    """Module with `open_samplers` and `load_sampler`, imported when sampling starts."""
    exact: ClassVar[bool] = False
    """True if a repeated run samples the same tokens, bit for bit."""
    starts_from_adapters: ClassVar[bool] = False
    """True if keys that are frozen, or trained as whole models, may start from an adapter."""
    rounds_adapters: ClassVar[bool] = False
    """True if adapters are merged into weights of the learner's type, in which rounding may hide small updates."""

    def chosen(self, ask: bool = True) -> SamplerKind:
        """Returns the sampler that is used: itself, unless its class chooses between others.

        Args:
            ask: If True, checks which libraries are installed here; if False (for a plan for another machine), assumes
                all are.

        Raises:
            UsageError: A library is not installed.
        """
        return self

    def dealt(self, number: int, controllers: int) -> SamplerKind:
        """Returns the sampler of one of several controllers. Default: itself, so each starts engines of its own.

        Args:
            number: Number of the controller, from 0 on.
            controllers: Number of controllers.

        Raises:
            UsageError: There are too few engines.
        """
        return self

    @property
    def engines(self) -> int:
        """Number of engines in separate processes, which a launcher may start elsewhere as servers."""
        return 0

    @property
    def gpus_each(self) -> int:
        """Number of GPUs per engine."""
        return 0

    @property
    def frees_gpu(self) -> bool:
        """True if the engines free their GPUs while the learner learns."""
        return False

    def computed_in(self, run: SampledRun) -> str:
        """Returns the number type of the sampler's matrix products. Default: the learner's."""
        return run.autocast or run.weights

    def separate(self, gpus: bool | None = None) -> bool:
        """Returns True if adapters stay separate from their base. Default: False, the sampler gets whole models.

        Args:
            gpus: True if it samples on GPUs. Default: determined on this machine.
        """
        return False

    def together(self, keys: Iterable[SampledKey], adapters: bool, gpus: bool | None = None) -> list[list[SampledKey]]:
        """Groups the keys that sample from the same copy of weights. Default: one key per group.

        Args:
            keys: Model keys of the run.
            adapters: True if adapters are trained.
            gpus: See `separate`.
        """
        return [[key] for key in keys]

    def memory(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[Part]:
        """Yields the memory items of keys that share a copy of weights. Default: none.

        Args:
            need: Sizes of the model.
            gpus: Number of GPUs.
            gpu_gib: GiB of memory of each.

        Raises:
            UsageError: There are too few GPUs, or they have too little memory.
        """
        return ()

    def fitted(self, gpus: int) -> dict[str, Any]:
        """Returns the options to change so that it runs on this number of GPUs, if it needs more. Default: none."""
        return {}

    def lighter(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[dict[str, Any]]:
        """Yields alternatives that use less memory, in order of increasing cost. Default: none.

        Args:
            need: Sizes of the model.
            gpus: Number of GPUs.
            gpu_gib: GiB of memory of each.
        """
        return ()

    def for_adapters(self) -> dict[str, Any]:
        """Returns the options to change so that adapters on a bfloat16 base can be sampled. Default: none."""
        return {}

    def server(self) -> SamplerKind:
        """Returns the options of one server, for a launcher."""
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def served(self, addresses: Sequence[str]) -> SamplerKind:
        """Returns these options for a training that samples from servers started by a launcher."""
        raise NotImplementedError(f"{type(self).__name__} has no servers")

    def label(self, dtype: str) -> str:
        """Returns the engine's name in records of evaluations, because scores of engines may differ by rounding."""
        return f"{name_of(self)} {dtype}"

    def open(self, keys: Sequence[SampledKey], run: SampledRun) -> Samplers:
        """Starts a sampler for each key of a run.

        Samplers have a copy of the weights, which changes only when new weights are published.

        Raises:
            SearchGymError: An engine does not start.
        """
        return importlib.import_module(self.back_end).open_samplers(self, keys, run)  # type: ignore[no-any-return]

    def load(
        self, folder: Path, dtype: str, *, requests: int, max_context: int | None, share: float
    ) -> tuple[Sampler, Any]:
        """Loads a model from a folder for an evaluation; returns its sampler and its tokenizer.

        Args:
            folder: Folder in Hugging Face format.
            dtype: Type of weights and computation.
            requests: Maximum number of concurrent requests.
            max_context: Maximum number of tokens of request and response. Default: the model's limit.
            share: Share of the device's memory that it may use.

        Raises:
            SearchGymError: The model cannot be loaded, or its engine does not start.
        """
        raise NotImplementedError(f"{type(self).__name__} loads no folders")
