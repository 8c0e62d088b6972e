"""Generated text that is searched like English: frequencies of words after Zipf, Lucene's stop words the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from searchgym.corpora.retrieval.analysis import STOP_WORDS
from searchgym.records import Passage

WORDS: Final = 300_000
EXPONENT: Final = 1.05
MEAN: Final = 100
"""Words of a passage, half to one and a half times that; Wikipedia's usual passages of search agents have 100."""
BLOCK: Final = 10_000


def vocabulary() -> list[str]:
    """Returns made-up words, the most frequent first."""
    onsets = [*"bcdfghklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr"]
    vowels = [*"aeiou", "ai", "ea"]
    syllables = [a + b for a in onsets for b in vowels]
    words = ["".join(word) for size in (2, 3) for word in itertools.product(syllables, repeat=size)]
    order = np.random.default_rng(1).permutation(len(words))
    return [*sorted(STOP_WORDS), *(words[i] + "x" for i in order[: WORDS - len(STOP_WORDS)])]


def passages(count: int, seed: int = 0) -> Iterator[Passage]:
    """Yields passages whose ids are their positions; a smaller number gives the first of a larger one."""
    words = np.array(vocabulary(), object)
    shares = np.arange(1, len(words) + 1) ** -EXPONENT
    totals = np.cumsum(shares / shares.sum())
    for block in range(0, count, BLOCK):
        draw = np.random.default_rng([seed, block])
        sizes = draw.integers(MEAN // 2, MEAN * 3 // 2, BLOCK)
        ids = np.searchsorted(totals, draw.random(int(sizes.sum())))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        for i in range(min(BLOCK, count - block)):
            own = words[np.minimum(ids[starts[i] : starts[i + 1]], len(words) - 1)]
            yield Passage(str(block + i), " ".join(own[:2]), " ".join(own[2:]))


def queries(count: int, corpus: int, seed: int = 0) -> list[str]:
    """Returns questions: 8 to 16 words out of a passage of the first `corpus`, in another order."""
    draw = np.random.default_rng([seed, 7])
    asked = sorted(draw.choice(corpus, count, replace=corpus < count).tolist())
    wanted, found = iter(asked), []
    goal = next(wanted, None)
    for number, passage in enumerate(passages(corpus, seed)):
        while goal == number:
            words = passage.text.split()
            found.append(" ".join(draw.choice(words, draw.integers(8, 17), replace=False)))
            goal = next(wanted, None)
        if goal is None:
            break
    return [found[i] for i in draw.permutation(len(found))]
