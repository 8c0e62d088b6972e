"""Generated text for search benchmarks, with English-like word frequencies: a Zipf law led by Lucene's stop words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.records import Passage
from searchgym.retrieval.bm25.analysis import STOP_WORDS

WORDS: Final = 300_000
"""Number of words in the vocabulary."""
EXPONENT: Final = 1.05
"""Exponent of the Zipf law."""
MEAN: Final = 100
"""Mean words per passage, drawn from half to one and a half times that; search agents' Wikipedia passages have 100."""
BLOCK: Final = 10_000
"""Number of passages per independently generated block."""


def vocabulary() -> list[str]:
    """Returns the generated vocabulary, the most frequent words first."""
    onsets = [*"bcdfghklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr"]
    vowels = [*"aeiou", "ai", "ea"]
    syllables = [a + b for a in onsets for b in vowels]
    words = ["".join(word) for size in (2, 3) for word in itertools.product(syllables, repeat=size)]
    order = np.random.default_rng(1).permutation(len(words))
    return [*sorted(STOP_WORDS), *(words[i] + "x" for i in order[: WORDS - len(STOP_WORDS)])]


class Text:
    """Generator of passages, in blocks that are independent of each other."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._words = np.array(vocabulary(), object)
        shares = np.arange(1, len(self._words) + 1) ** -EXPONENT
        self._totals = np.cumsum(shares / shares.sum())

    def words(self, block: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the numbers of the words in a block, and where each of its passages begins and the last one ends."""
        draw = np.random.default_rng([self._seed, block * BLOCK])
        sizes = draw.integers(MEAN // 2, MEAN * 3 // 2, BLOCK)
        ids = np.searchsorted(self._totals, draw.random(int(sizes.sum())))
        return np.minimum(ids, len(self._words) - 1), np.concatenate([[0], np.cumsum(sizes)])

    def passages(self, block: int, chosen: Iterable[int]) -> Iterator[Passage]:
        """Yields the passages of a block that have the given numbers within it."""
        ids, starts = self.words(block)
        for i in chosen:
            own = self._words[ids[starts[i] : starts[i + 1]]]
            yield Passage(str(block * BLOCK + i), " ".join(own[:2]), " ".join(own[2:]))


def passages(count: int, seed: int = 0) -> Iterator[Passage]:
    """Yields `count` passages whose ids are their positions; a smaller count gives the first of a larger one."""
    text = Text(seed)
    for block in range(-(-count // BLOCK)):
        yield from text.passages(block, range(min(BLOCK, count - block * BLOCK)))


def queries(count: int, corpus: int, seed: int = 0) -> list[str]:
    """Returns queries, each 8 to 16 shuffled words of one of the first `corpus` passages."""
    draw, text = np.random.default_rng([seed, 7]), Text(seed)
    asked = np.sort(draw.choice(corpus, count, replace=corpus < count))
    found = []
    for block in np.unique(asked // BLOCK).tolist():
        for passage in text.passages(block, (asked[asked // BLOCK == block] % BLOCK).tolist()):
            words = passage.text.split()
            found.append(" ".join(draw.choice(words, draw.integers(8, 17), replace=False)))
    return [found[i] for i in draw.permutation(len(found))]
