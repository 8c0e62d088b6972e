"""Fault ``stale``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from searchgym.envs.faults.fault import Fault
from searchgym.records import Hit

NUMBER: Final = re.compile(r"[0-9]{1,15}")
"""Matches a number, or a part of a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale(Fault):
    """The results are old copies: every number in their texts is 1 to 9 smaller; opened pages are current."""

    @override
    def changed(self, hits: Sequence[Hit], numbers: Iterator[int]) -> list[Hit]:
        def older(match: re.Match[str]) -> str:
            return str(max(int(match[0]) - 1 - next(numbers) % 9, 0))

        return [
            Hit(dataclasses.replace(hit.passage, text=NUMBER.sub(older, hit.passage.text), links=()), hit.score)
            for hit in hits
        ]
