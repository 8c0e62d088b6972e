"""Parameters of masked spans."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, Literal

from searchgym.errors import UsageError
from searchgym.options import Options

MOST_MASKS: Final = 4
"""Maximum number of spans hidden at once (MaskSearch, arXiv 2505.20285: fewer than five)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSpec(Options):
    """Parameters of masked spans generated from a corpus: equal specs and corpora give the same tasks."""

    n: int = 1000
    """Number of tasks over all splits; fewer if the corpus does not yield enough."""
    seed: int = 0
    split: Literal["train", "validation", "test", "all"] = "train"
    """Split to use; no source page is in two splits."""
    source: Literal["kept", "hidden"] = "kept"
    """``kept``: searches can find the page of the passage. ``hidden``: that page is never among the hits, and only
    spans that another page states strictly are masked."""
    masks: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 3, 4])
    """Numbers of spans hidden at once, from 1 to 4; each number gets an equal share of the tasks."""
    pack: str = "people-and-works"
    """Pack of patterns that find names, dates and numbers."""
    triples: str | None = None
    """File of triples whose subjects are titles and whose objects are hidden, instead of links and a pack."""
    hold_out: list[str] = dataclasses.field(default_factory=list)
    """Question files of an evaluation, whose gold pages appear in no task and no hit."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: A number is out of range.
        """
        if self.n < 1:
            raise UsageError(f"masked: n must be at least 1, got {self.n}")
        if not self.masks or not all(1 <= masks <= MOST_MASKS for masks in self.masks):
            raise UsageError(f"masked: masks are numbers from 1 to {MOST_MASKS}, got {self.masks}")
