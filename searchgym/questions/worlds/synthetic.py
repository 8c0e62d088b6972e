"""Synthetic corpora for tests of size: pages with the word statistics of Wikipedia, streamed from a seed.

The figures that the text follows were measured on the 6,119 passages of 2WikiMultihopQA that HippoRAG's repository has
(see docs/trust/corpora.md): lengths of passages, shares of the commonest words, growth of the vocabulary, repetition
within a passage, lengths of titles. The words have no meaning: nothing is learnt from such text, and a score on it says
nothing about real questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.records import Paragraph, Passage, Question, SupportingFact

_COMMONEST: Final = (
    "the 591, of 444, and 337, in 264, a 227, was 205, is 130, he 124, to 118, film 115, by 105, his 103, as 88, "
    "for 71, on 65, s 64, an 53, with 48, from 48, at 44, born 39, directed 38, it 37, american 32, she 32, who "
    "31, her 31, also 29, son 24, known 24, first 24, director 24, films 21, or 20, that 19, which 19, de 19, may "
    "18, died 18, after 18, one 17, had 17, i 17, daughter 16, best 16, has 16, duke 16, released 16, king 15, "
    "john 15, starring 14, death 14, ii 14, wife 14, during 13, new 13, father 13, married 13, two 13, were 12"
)
"""The commonest words, each with its share of all words in units of 0.0001."""
HEAD: Final = tuple(pair.split()[0] for pair in _COMMONEST.split(", "))
"""The commonest words, in order of their shares."""
_HEAD_SHARES: Final = np.array([int(pair.split()[1]) for pair in _COMMONEST.split(", ")]) / 10_000
_MIDDLE: Final = 3000
"""Rank up to which a word's share falls with its rank; beyond, the vocabulary grows without end."""
_TAIL: Final = 1.45
"""Exponent of the shares beyond: the number of different words grows with the text to the power 1 / 1.45."""
_LOG_LENGTH: Final = (3.68, 0.92)
"""Mean and standard deviation of the logarithm of a passage's number of words, apart from titles in it."""
_LENGTHS: Final = (8, 800)
"""Smallest and largest number of words of a passage."""
_REPEATED: Final = 0.25
"""Share of rare words that repeat an earlier one of their passage."""
_LINKS: Final = 2.0
"""Mean number of links of a page."""
_BRACKETED: Final = 0.145
"""Share of titles with a bracket at their end."""
BLOCK: Final = 500
"""Number of passages that are uniform at once, from a generator of their own."""
_ONSETS: Final = (*"bdfghklmnprstvwz", "br", "ch", "dr", "gr", "kl", "pr", "sh", "st", "th", "tr")
_VOWELS: Final = (*"aeiou", "ai", "ea", "ou")
_SYLLABLES: Final = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
_CLASSES: Final = ("film", "river", "album", "village", "novel", "painter", "station", "footballer")
"""Words in brackets at the end of titles."""


def word_of(number: int) -> str:
    """Returns the word of a number from 0, made of syllables; different numbers have different words."""
    parts = []
    number += len(_SYLLABLES)  # at least two syllables
    while number >= 0:
        number, rest = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[rest])
        number -= 1
    return "".join(reversed(parts)) + "n"


def title_of(page: int) -> str:
    """Returns the title of a page from its number; different pages have different titles, even without brackets.

    Like names, titles have two words or more, the first of which many pages share.
    """
    mixed = (page * 2654435761 + 97) % 2**32
    first, rest = mixed % 4093, (mixed >> 8) % 100
    words = [word_of(2000 + first), word_of(page)]
    words += [word_of(100 + mixed % 877)] * (rest >= 40) + [word_of(100 + mixed % 1009)] * (rest >= 72)
    words += [word_of(100 + mixed % 1201)] * (rest >= 88)
    title = " ".join(word.capitalize() for word in words)
    bracket = (mixed >> 16) % 1000 < 1000 * _BRACKETED
    return f"{title} ({_CLASSES[mixed % len(_CLASSES)]})" if bracket else title


class SyntheticText:
    """Generator of passages: a smaller corpus of a seed is the beginning of a larger one.

    Args:
        seed: Seed of the text; titles depend on the page's number alone.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        ranks = np.arange(len(HEAD) + 1, _MIDDLE + 1)
        left = 1 - _HEAD_SHARES.sum()
        middle = 1 / ranks
        tail = 1 / (_TAIL - 1)  # of the share of rank `_MIDDLE`, times `_MIDDLE`
        middle *= left / (middle.sum() + tail)
        self._totals = np.cumsum(np.concatenate([_HEAD_SHARES, middle]))
        self._words = [*HEAD, *(word_of(rank) for rank in range(_MIDDLE - len(HEAD)))]

    def passages(self, count: int) -> Iterator[Passage]:
        """Yields `count` passages; the id of each is its number from 0.

        Raises:
            UsageError: `count` is less than 1.
        """
        if count < 1:
            raise UsageError(f"a corpus has at least one passage, got {count}")
        for block in range(-(-count // BLOCK)):
            yield from self._block(block, range(min(BLOCK, count - block * BLOCK)))

    def passage(self, number: int) -> Passage:
        """Returns the passage of a number."""
        return next(self._block(number // BLOCK, (number % BLOCK,)))

    def _block(self, block: int, chosen: Iterable[int]) -> Iterator[Passage]:
        """Yields the passages of a block that have the given numbers in it."""
        draw = np.random.default_rng([self._seed, block])
        lengths = np.clip(np.exp(draw.normal(*_LOG_LENGTH, BLOCK)), *_LENGTHS).astype(np.int64)
        links = draw.poisson(_LINKS, BLOCK)
        targets = draw.random(int(links.sum())) ** 2  # early pages are linked to more often
        ranks = self._ranks(draw.random(int(lengths.sum())))
        repeats = draw.random(len(ranks))
        ends, link_ends = np.cumsum(lengths), np.cumsum(links)
        for at in chosen:
            page, first = block * BLOCK + at, int(ends[at] - lengths[at])
            page_ranks, again = ranks[first : ends[at]], repeats[first : ends[at]]
            linked = (targets[link_ends[at] - links[at] : link_ends[at]] * page).astype(np.int64).tolist()
            yield self._page(page, page_ranks, again, list(dict.fromkeys(other for other in linked if other != page)))

    def _ranks(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Returns the ranks from 0 of words, given numbers drawn uniformly from [0, 1)."""
        ranks = np.searchsorted(self._totals, uniform, side="right")
        beyond = ranks >= len(self._totals)
        left = (1 - uniform[beyond]) / (1 - self._totals[-1])
        ranks[beyond] = np.minimum(_MIDDLE * left ** (-1 / (_TAIL - 1)), 2**40).astype(np.int64)
        return ranks

    def _page(
        self, page: int, ranks: npt.NDArray[np.int64], repeats: npt.NDArray[np.float64], linked: list[int]
    ) -> Passage:
        """Makes the text of a page: its title, words in sentences, and the titles of other pages with links."""
        title = title_of(page)
        words, rare = [title.split(" (")[0], "is", "a"], list[str]()
        for rank, repeat in zip(ranks.tolist(), repeats.tolist(), strict=True):
            if rare and repeat < _REPEATED and rank >= len(HEAD):
                words.append(rare[int(repeat / _REPEATED * len(rare))])
                continue
            word = self._words[rank] if rank < _MIDDLE else word_of(rank - len(HEAD))
            words.append(word)
            if rank >= len(HEAD):
                rare.append(word)
        link_at = {3 + (number + 1) * len(ranks) // (len(linked) + 1): other for number, other in enumerate(linked)}
        text, links, start = list[str](), list[tuple[int, int, str]](), 0
        for number, word in enumerate(words):
            if (other := link_at.get(number)) is not None:
                name = title_of(other).split(" (")[0]
                links.append((start, start + len(name), str(other)))
                text.append(name)
                start += len(name) + 1
            full = number % 19 == 18 or number == len(words) - 1
            written = word.capitalize() if number and number % 19 == 0 else word
            text.append(written + "." * full)
            start += len(written) + full + 1
        return Passage(str(page), title, " ".join(text), tuple(links))

    def questions(self, count: int, corpus: int) -> Iterator[Question]:
        """Yields questions with two gold pages: a page with a link, and the page that it leads to.

        They have the form of a public set's questions, with gold paragraphs and supporting facts, for tests of size.
        The answer is the last rare word of the second page.

        Args:
            count: Number of questions, at most a fifth of the corpus.
            corpus: Number of passages that the pages are among.

        Raises:
            UsageError: There are too few passages.
        """
        if not 1 <= count <= corpus // 5:
            raise UsageError(f"{count} questions need at least {5 * count} passages, got {corpus}")
        step = corpus // count
        for at in range(count):
            page = next(p for p in map(self.passage, range(at * step, corpus)) if p.links)
            linked = self.passage(int(page.links[0][2]))
            golds = tuple(Paragraph(p.title, tuple(_sentences(p.text)), True) for p in (page, linked))
            words = [word.strip(".") for word in linked.text.split()]  # a text begins with its title, a rare word
            answer = next(word for word in reversed(words) if word.lower() not in HEAD)
            facts = (SupportingFact(page.title, 0), SupportingFact(linked.title, len(golds[1].sentences) - 1))
            text = f"Which is the last rare word of the page that {page.title} links to first?"
            yield Question(f"s{at}", text, (answer,), paragraphs=golds, supporting_facts=facts)


def _sentences(text: str) -> list[str]:
    """Returns the sentences of a text, each with the space after it."""
    parts = text.split(". ")
    return [part + ". " for part in parts[:-1]] + parts[-1:]
