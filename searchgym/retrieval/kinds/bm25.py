"""Retriever ``bm25``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from annotated_types import Interval

from searchgym.corpora.store.reader import PassageStore
from searchgym.retrieval.cards import PartCard, quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class BM25Card(PartCard):
    """BM25 in this process, over memory-mapped postings."""

    back_end: ClassVar = "searchgym.retrieval.bm25.backend"
    at_search: ClassVar = ("threads",)

    k1: Annotated[float, Interval(ge=0, le=1e6)] = 0.9
    """Saturation of term frequency: with smaller values, repeats of a term count less."""
    b: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Strength of length normalisation, from 0 (none) to 1 (full)."""
    threads: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of threads of one search with many queries; 0 means one per core, at most 8."""

    def verify(self, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str) -> None:
        """Checks all postings, as every load does: a manifest may be forged along with its files."""
        self.load(folder, facts, passages, sha256, quiet)


DEFAULT: Final = BM25Card()
"""Card by which an index is built if none is given."""
