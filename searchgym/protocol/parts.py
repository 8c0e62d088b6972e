"""Texts in parts: what a project writes itself, and what pages, questions and models wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

Parts = Sequence[tuple[str, bool]]
"""Consecutive parts of a text that a model reads, each with whether it is own text: the wording of a prompt, the tags
around pages. Pages, questions and texts of models are not; no added token of a tokenizer is made of them."""


class Shown(str):
    """Text of an environment that knows its parts; cut or joined to another text, it is a plain string without any."""

    parts: Parts

    @classmethod
    def of(cls, *parts: tuple[str, bool]) -> Self:
        """Returns the text of some parts."""
        made = cls(joined(parts))
        made.parts = parts
        return made


def joined(text: str | Parts) -> str:
    """Returns a text that may be given in parts."""
    return text if isinstance(text, str) else "".join(part for part, _ in text)
