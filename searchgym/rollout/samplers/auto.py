"""Sampler ``auto``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from typing_extensions import override

from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.samplers.vllm import TESTED, Vllm, is_tested, vllm_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(SamplerKind):
    """Samples with vLLM if a tested version is installed, else with transformers, each with its default options."""

    @override
    def chosen(self, ask: bool = True) -> SamplerKind:
        # Prints to standard error why transformers is used.
        version = vllm_version() if ask else TESTED[0]
        if is_tested(version):
            return Vllm()
        tested = ", ".join(TESTED)
        why = "is not installed" if version is None else f"{version} has not been tested here ({tested}x has)"
        sys.stderr.write(f"rollout.sampler auto: vLLM {why}, using transformers\n")
        return Transformers()
