"""Parameters of generated questions, the same for environments, commands and pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from searchgym.errors import UnknownNameError, UsageError
from searchgym.options import Options

SPLITS: Final = ("train", "validation", "test")
SENTENCE: Final = "sentence"
"""Shape of questions made from a sentence, with one part replaced by a question phrase."""
VEILED: Final = "veiled"
"""Shape of chains whose first page is described by clues instead of named."""
CLOZE: Final = ("cloze", "cloze-chain")
"""Shapes that copy sentences. A single word of the hidden name left in the text would reveal it."""
MIX: Final[Mapping[tuple[str, int], float]] = {
    ("chain", 4): 0.05,
    ("chain", 3): 0.05,
    ("chain", 2): 0.35,
    (VEILED, 2): 0.2,
    (SENTENCE, 2): 0.2,
    ("cloze-chain", 2): 0.1,
    ("bridge-comparison", 4): 0.1,
    ("comparison", 2): 0.1,
    ("intersection", 1): 0.05,
    ("cloze", 1): 0.05,
    (VEILED, 1): 0.1,
    (SENTENCE, 1): 0.3,
    ("chain", 1): 0.15,
}
"""Shares of the questions by shape and hops. If a shape falls short, the next shapes in this order fill the gap: a
corpus without facts gets cloze questions, and single facts do not replace questions that need several pages."""
SHAPES: Final = tuple(dict.fromkeys(shape for shape, _ in MIX))
USUAL: Final = tuple(shape for shape in SHAPES if shape not in (SENTENCE, VEILED))
"""Shapes drawn by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSpec(Options):
    """Parameters of questions generated from a corpus: equal specs and corpora give the same questions."""

    n: int = 1000
    """Number of questions over all splits; fewer if the corpus does not yield enough."""
    seed: int = 0
    """Random seed; in a pipeline, it is added to the pipeline's seed."""
    pack: str = "people-and-works"
    """Pack of patterns and wordings. Text that it does not cover still gives sentences with a hidden name."""
    shapes: tuple[str, ...] = ()
    """Shapes of questions, such as ``chain``; empty: all but ``sentence`` and ``veiled``."""
    shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    """Shares of pages and questions for train, validation and test."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UnknownNameError: A shape does not exist.
            UsageError: A number is out of range.
        """
        for shape in self.shapes:
            if shape not in SHAPES:
                raise UnknownNameError("shape of questions", shape, SHAPES)
        if self.n < 1:
            raise UsageError(f"a question set needs n of at least 1, got {self.n}")
        if len(self.shares) != 3 or min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise UsageError(f"shares are three numbers that add up to 1, got {self.shares}")

    @property
    def mix(self) -> dict[tuple[str, int], float]:
        """Shares of the questions by shape and hops, for the selected shapes; they add up to 1."""
        mix = {key: share for key, share in MIX.items() if key[0] in (self.shapes or USUAL)}
        return {key: share / sum(mix.values()) for key, share in mix.items()}

    @property
    def needed(self) -> tuple[str, ...]:
        """Splits that must have at least one question."""
        return tuple(split for split, share in zip(SPLITS, self.shares, strict=True) if round(self.n * share))
