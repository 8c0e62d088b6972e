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
    """Samples with vLLM if a version covered by the tests is installed, else with transformers; both as by default."""

    @override
    def chosen(self, ask: bool = True) -> SamplerKind:
        # Tells on standard error why transformers samples.
        version = vllm_version() if ask else TESTED[0]
        if is_tested(version):
            return Vllm()
        known = ", ".join(TESTED)
        why = "is not installed" if version is None else f"{version} has not been tested here ({known}x has)"
        sys.stderr.write(f"rollout.sampler auto: vLLM {why}, transformers samples\n")
        return Transformers()
