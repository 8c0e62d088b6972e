"""Texts in parts, each marked as SearchGym's own wording or as foreign text of pages, questions or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

Parts = Sequence[tuple[str, bool]]
"""Consecutive parts of a text that a model reads, each with a flag: True for own text, such as the wording of a prompt
or the tags around pages; False for pages, questions and texts of models, which are never encoded as special tokens."""


class Shown(str):
    """Text of an environment that carries its parts; slicing or concatenation returns a plain string without parts."""

    parts: Parts

    @classmethod
    def of(cls, *parts: tuple[str, bool]) -> Self:
        """Joins parts into one text that carries them."""
        text = cls(joined(parts))
        text.parts = parts
        return text


def joined(text: str | Parts) -> str:
    """Returns a text, joined first if it is in parts."""
    return text if isinstance(text, str) else "".join(part for part, _ in text)
