"""Retriever ``lucene``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import override

from searchgym.retrieval.cards import PartCard


@dataclass(frozen=True, slots=True, kw_only=True)
class LuceneCard(PartCard):
    """BM25 by Lucene, through pyserini; needs a JDK."""

    back_end: ClassVar = "searchgym.retrieval.lucene.backend"
    at_search: ClassVar = ("k1", "b", "threads", "memory")
    takes: ClassVar = "lucene"
    extra: ClassVar = "lucene"

    k1: Annotated[float, Interval(ge=0, le=1e6)] = 0.9
    """Saturation of term frequency: with smaller values, repeats of a term count less."""
    b: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Strength of length normalisation, from 0 (none) to 1 (full)."""
    threads: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of threads of one search with many queries; 0 means one per core."""
    memory: str = "2g"
    """Maximum heap of the Java virtual machine, such as ``512m``; fixed when the machine starts."""

    @override
    def problems(self) -> Iterable[str]:
        if not re.fullmatch(r"[1-9]\d*[kmgtKMGT]?", self.memory):
            yield f"memory must be a number of bytes such as 512m or 4g, got {self.memory!r}"
