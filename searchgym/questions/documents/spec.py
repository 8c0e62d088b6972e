"""Parameters of generated long documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from annotated_types import Ge

from searchgym.errors import UsageError
from searchgym.options import Options

VERSION: Final = 1
"""Version of the generator, incremented whenever the same specification gives different bytes."""
LEAST: Final = {"n": 1, "documents": 40, "words": 1000}
"""Smallest values: with fewer documents three properties rarely fit one institution; with fewer words the facts of a
document do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsSpec(Options):
    """Parameters of generated documents: equal specs give the same documents and questions, byte for byte."""

    n: Annotated[int, Ge(LEAST["n"])] = 100
    """Number of questions."""
    documents: Annotated[int, Ge(LEAST["documents"])] = 100
    """Number of documents."""
    words: Annotated[int, Ge(LEAST["words"])] = 5000
    """Minimum number of words of a document."""
    seed: int = 0
    split: Literal["train", "validation", "test"] = "train"
    """Split, which determines the names and the templates; the splits share no name."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: A number is too small.
        """
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(f"generated documents need {name} of at least {least}, got {getattr(self, name)}")
