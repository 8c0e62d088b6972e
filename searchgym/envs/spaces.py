"""Gymnasium space for text of any language, used for observations and actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from searchgym.errors import UsageError


class UnicodeText(Space[str]):
    """Gymnasium space of all strings of at most `max_length` characters.

    Gymnasium's ``Text`` enumerates its characters: its default lacks the space, building it for all of Unicode takes
    seconds, and a shared-memory ``AsyncVectorEnv`` returns garbage for it. This space has no shape and no dtype, so
    ``AsyncVectorEnv(shared_memory=True)`` raises an error; use ``shared_memory=False``.

    Args:
        max_length: Maximum length of a string, in characters.
        samples: Templates in which `sample` replaces ``{}`` with random text; they should exercise the environment.
        seed: Seed of the space's random generator.
    """

    def __init__(
        self, max_length: int, samples: Sequence[str] = ("{}",), seed: int | np.random.Generator | None = None
    ) -> None:
        if max_length < 1:
            raise UsageError(f"max_length must be at least 1, got {max_length}")
        self.max_length = max_length
        self.samples = tuple(samples)
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Whether samples can be flattened to an array: False, since text has no array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns a random template filled with random characters of several scripts.

        Raises:
            UsageError: A mask or a probability was passed, which this space does not support.
        """
        if mask is not None or probability is not None:
            raise UsageError("UnicodeText has no masks or probabilities")
        letters = [chr(c) for c in self.np_random.choice(_LETTERS, size=int(self.np_random.integers(1, 12)))]
        template = self.samples[int(self.np_random.integers(len(self.samples)))]
        return template.replace("{}", "".join(letters))[: self.max_length]

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a string within the length limit, in constant time."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Returns the samples as a list: strings need no conversion to JSON."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Returns the samples read from JSON as strings."""
        return [str(sample) for sample in sample_n]

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))


_LETTERS: npt.NDArray[np.int64] = np.array([ord(c) for c in "abcxyzàéßøłЖдλ漢字ぁ한 -'0179"], dtype=np.int64)
