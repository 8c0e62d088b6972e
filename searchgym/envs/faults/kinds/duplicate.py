"""Fault ``duplicate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from searchgym.envs.faults.fault import Fault
from searchgym.records import Hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Fault):
    """One random hit fills the whole list, as copies of a page under several addresses do."""

    @override
    def changed(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        return [hits[next(numbers) % len(hits)]] * len(hits) if hits else []
