"""Fault ``empty``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from searchgym.envs.faults.fault import Fault
from searchgym.records import Hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(Fault):
    """The search finds nothing, as if the corpus held nothing about it."""

    @override
    def changed(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        return []
