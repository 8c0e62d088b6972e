"""Sampler ``auto``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from typing_extensions import override

from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.samplers.vllm import Vllm, lacking, vllm_version
from searchgym.rollout.vllm.launch.versions import RANGE, is_accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(SamplerKind):
    """Samples with vLLM if an accepted version is installed, else with transformers, each with its default options."""

    @override
    def chosen(self, ask: bool = True) -> SamplerKind:
        # Prints to standard error why transformers is used.
        if not ask:
            return Vllm()
        version = vllm_version()
        if version is None:
            why = "is not installed"
        elif not is_accepted(version):
            why = f"{version} is not from {RANGE}, the accepted versions"
        elif missing := lacking(version):
            why = missing
        else:
            return Vllm()
        sys.stderr.write(f"rollout.sampler auto: vLLM {why}, using transformers\n")
        return Transformers()
