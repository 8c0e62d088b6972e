"""Sampler ``transformers``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.sampler_kind import LIVE_LOGITS, Need, Part, SamplerKind, bytes_of

BATCH_TOKENS: Final = 65_536
"""Default maximum number of tokens in a running batch, and of cached tokens of earlier requests."""
GPU_TOKENS: Final = 262_144
"""Maximum number of tokens, as `BATCH_TOKENS`, on a GPU, where a step of many rows takes about as long as one of few;
see `GPU_SHARE`."""
GPU_SHARE: Final = 1 / 24
"""Share of a GPU's memory up to which batches may exceed `BATCH_TOKENS`."""
MEMORY_SHARE: Final = 1 / 16
"""Maximum share of the machine's memory for the keys and values of a running batch; the cache of earlier requests has
the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformers(SamplerKind):
    """Samples with transformers in this process; runs are reproducible bit for bit.

    See `searchgym.rollout.transformers.sampler`.
    """

    back_end: ClassVar = "searchgym.rollout.transformers.sampler"
    exact: ClassVar = True
    starts_from_adapters: ClassVar = True
    rounds_adapters: ClassVar = True

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to sample on; ``auto`` is a GPU if one is available, else the CPU."""

    @override
    def label(self, dtype: str) -> str:
        # transformers in float32 is the reference and has an empty label
        return "" if dtype == "float32" else dtype

    @override
    def load(
        self, folder: Path, dtype: str, *, requests: int, max_context: int | None, share: float
    ) -> tuple[Sampler, Any]:
        from searchgym.rollout.loading import device_of

        back, device = importlib.import_module(self.back_end), device_of(self.device)
        return back.load_sampler(folder, dtype, device=device)  # type: ignore[no-any-return]

    @override
    def memory(self, need: Need, gpus: int, gpu_gib: float) -> Iterable[Part]:
        # weights are in memory all the time, keys and values while it samples
        if self.device == "cuda" and not gpus:
            raise UsageError("rollout.sampler.device is cuda, and there is no GPU (searchgym doctor)")
        device = "cuda:0" if gpus and self.device != "cpu" else "cpu"
        size = bytes_of(need.run.weights)
        per_token = need.per_token * size / 2**30
        tokens = BATCH_TOKENS if device == "cpu" else most_tokens(per_token, gpu_gib, on_gpu=True)
        cached, logits = tokens * per_token, need.run.requests * need.vocabulary * 4 * LIVE_LOGITS / 2**30
        weights = need.parameters * size
        if need.run.autocast == "bfloat16" and size == 4:  # the layers' matrices in bfloat16
            weights = 2 * need.parameters + 2 * need.head * (1 if need.tied else 2)
            yield Part(device, "sampler: rounded head", need.head * (4 if device == "cpu" else 2) / 2**30, ("draw",))
        yield Part(device, "sampler: weights", weights / 2**30)
        yield Part(device, "sampler: keys and values, running", cached + logits, ("draw",))
        yield Part(device, "sampler: keys and values, remembered", cached, ("draw",))

    @override
    def for_adapters(self) -> dict[str, Any]:
        # transformers would merge the adapter into rounded weights
        return {"kind": "vllm", "sleep": 1, "gpu_share": 0.3}


def most_tokens(per_token: float, memory: float, on_gpu: bool) -> int:
    """Returns the maximum number of tokens whose keys and values a device caches; both sizes in the same unit."""
    usual = min(BATCH_TOKENS, memory * MEMORY_SHARE // per_token)
    more = min(GPU_TOKENS, memory * GPU_SHARE // per_token) if on_gpu else 0
    return max(1, int(max(usual, more)))
