"""Compares the texts of gold pages with the passages of a corpus, which is read once and never held in memory.

A shingle is four words in a row (Broder, 1997). A passage is compared with a gold page if their titles are equal when
folded (`golds.fold_title`), or if they share at least two of the page's rarest shingles. Memory grows with the gold
pages, not with the corpus; passages are compared in batches, by numbers in place of words.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.eval.audit.golds import GoldPage, fold_title, plain_words
from searchgym.records import Passage, title_key

RUN: Final = 4
"""Number of words of a shingle."""
ANCHORS: Final = 32
"""Maximum number of shingles of a gold page, the rarest ones, that are looked up for every passage."""
LEAST: Final = 2
"""Minimum number of shared anchors from which on a passage under another title is compared."""
BATCH: Final = 200_000
"""Number of words of the corpus that are compared at once."""
TITLES: Final = 8
"""Maximum number of titles whose passages are recorded for one gold page; those that share most are kept."""
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""Odd factors that make one number of the numbers of four words."""
_BITS: Final = 22
"""Binary logarithm of the size of the filter in front of the exact look-up of a shingle."""


@dataclass(slots=True)
class Cover:
    """What the passages of one title share with a gold page."""

    title: str
    shingles: npt.NDArray[np.bool_]
    """(S,) shingles of the page that these passages share; S is the number of its words less three, at least 0."""
    words: npt.NDArray[np.bool_]
    """(W,) words of the page within shared shingles, or within a shorter passage that is part of the page."""
    ids: list[str] = field(default_factory=list)
    """Ids of the passages that share a shingle, in the order of the corpus."""
    whole: list[str] = field(default_factory=list)
    """Ids of the passages that contain every shingle of the page."""
    extra: int = 0
    """Number of words of these passages outside shared shingles."""
    inserted: int = 0
    """Number of times that at most three other words stand between two shared shingles of a passage."""
    altered: list[str] = field(default_factory=list)
    """Ids of passages that share half of their words and of the page's, and in which other words differ."""

    @property
    def share(self) -> float:
        """Share of the page's words that these passages have, in [0, 1]."""
        return float(self.words.mean()) if len(self.words) else 0.0

    @property
    def distance(self) -> float:
        """Share of the words of both texts that lie outside shared shingles, in [0, 1]; 0 for equal texts.

        Words in several passages, as in chunks that overlap, count once on the page's side and are not extra.
        """
        shared = 2 * int(self.words.sum())
        return 1.0 - shared / (shared + int((~self.words).sum()) + self.extra) if shared else 1.0


@dataclass(slots=True)
class Match:
    """What a corpus has of one gold page."""

    page: GoldPage
    words: npt.NDArray[np.int64]
    """(W,) numbers of the words of the page's text."""
    shingles: npt.NDArray[np.uint64]
    """(S,) one number for each shingle."""
    covers: dict[str, Cover] = field(default_factory=dict)
    """Covers by the exact normal form of the passages' title (`title_key`)."""
    texts: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Numbers of the words of the passages with this title, for a page without text; 0 for words of no question."""


class Matcher:
    """Finds gold pages in a corpus that is given passage by passage.

    Args:
        pages: Gold pages without duplicates.
        answers: Answers of the questions, whose words are recognised in passages of pages without text.
    """

    def __init__(self, pages: Sequence[GoldPage], answers: Iterable[str] = ()) -> None:
        self.numbers: dict[str, int] = {}
        """Numbers of the words of all gold pages and answers, from 1."""
        for answer in answers:
            self.number(plain_words(answer), grow=True)
        self.matches = [self._match(page) for page in pages]
        self._by_title: defaultdict[str, list[int]] = defaultdict(list)
        for at, page in enumerate(pages):
            self._by_title[fold_title(page.title)].append(at)
        self._anchors, self._owners = self._rarest()
        self._filter = np.zeros(1 << _BITS, np.bool_)
        self._filter[self._anchors >> np.uint64(64 - _BITS)] = True
        counts = np.bincount(self._owners, minlength=len(pages)) if len(self._owners) else np.zeros(len(pages), int)
        self._least = np.minimum(counts, LEAST)

    def number(self, words: Iterable[str], grow: bool = False) -> npt.NDArray[np.int64]:
        """Returns the numbers of words; 0 for unknown ones, unless they are to be added."""
        if grow:
            return np.array([self.numbers.setdefault(word, len(self.numbers) + 1) for word in words], np.int64)
        return np.fromiter(map(self.numbers.get, words, itertools.repeat(0)), np.int64)

    def _match(self, page: GoldPage) -> Match:
        words = self.number(plain_words(page.text or ""), grow=True)
        return Match(page, words, shingles_of(words)[0])

    def _rarest(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Returns the anchors of all pages, sorted, and the page of each."""
        counts = Counter(shingle for match in self.matches for shingle in set(match.shingles.tolist()))
        anchors, owners = list[int](), list[int]()
        for at, match in enumerate(self.matches):
            rarest = sorted(set(match.shingles.tolist()), key=lambda shingle: (counts[shingle], shingle))[:ANCHORS]
            anchors += rarest
            owners += [at] * len(rarest)
        values, pages = np.array(anchors, np.uint64), np.array(owners, np.int64)
        order = np.argsort(values, kind="stable")
        return values[order], pages[order]

    def add(self, passages: Iterable[Passage]) -> None:
        """Compares passages with the gold pages."""
        for batch in _batches(passages):
            self._compare(*batch)

    def _compare(self, batch: Sequence[Passage], words: Sequence[list[str]]) -> None:
        lengths = np.array([len(part) for part in words], np.int64)
        flat = self.number(itertools.chain.from_iterable(words))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        shingles, valid = shingles_of(flat)
        first = np.searchsorted(ends, np.arange(len(shingles)), side="right")  # passage of each shingle
        valid &= np.arange(len(shingles)) + RUN <= ends[first] if len(shingles) else valid
        pairs = self._by_anchors(shingles, valid, first, len(batch))
        for number, passage in enumerate(batch):
            pairs.update((at, number) for at in self._by_title.get(fold_title(passage.title), ()))
        for at, number in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
            span = slice(starts[number], max(starts[number], ends[number] - RUN + 1))
            numbers = flat[starts[number] : ends[number]]
            _record(self.matches[at], batch[number], numbers, shingles[span], valid[span])

    def _by_anchors(
        self,
        shingles: npt.NDArray[np.uint64],
        valid: npt.NDArray[np.bool_],
        first: npt.NDArray[np.int64],
        count: int,
    ) -> set[tuple[int, int]]:
        """Returns the pairs (page, passage of the batch) that share enough anchors."""
        if not len(self._anchors) or not len(shingles):
            return set()
        near = np.flatnonzero(valid & self._filter[shingles >> np.uint64(64 - _BITS)])
        left = np.searchsorted(self._anchors, shingles[near], side="left")
        right = np.searchsorted(self._anchors, shingles[near], side="right")
        times = right - left
        anchors = np.repeat(left, times) + np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        keys = self._owners[anchors] * count + np.repeat(first[near], times)
        pairs, shared = np.unique(keys, return_counts=True)
        enough = pairs[shared >= self._least[pairs // count]]
        return {(int(pair // count), int(pair % count)) for pair in enough}


def shingles_of(words: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Returns one number for each four words in a row, and whether all four are valid (not 0): two arrays (W - 3,)."""
    count = max(len(words) - RUN + 1, 0)
    numbers = words.astype(np.uint64)
    shingles, valid = np.zeros(count, np.uint64), np.ones(count, np.bool_)
    for offset, factor in enumerate(_FACTORS):
        part = numbers[offset : offset + count]
        shingles += part * factor
        valid &= part != 0
    return shingles, valid


def _batches(passages: Iterable[Passage]) -> Iterator[tuple[list[Passage], list[list[str]]]]:
    """Yields passages and their words, about `BATCH` words at a time."""
    batch, words, total = list[Passage](), list[list[str]](), 0
    for passage in passages:
        batch.append(passage)
        words.append(plain_words(passage.text))
        total += len(words[-1])
        if total >= BATCH or len(batch) >= BATCH // 10:
            yield batch, words
            batch, words, total = [], [], 0
    if batch:
        yield batch, words


def spread(shingles: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """Returns which of `count` words lie in a shingle that is marked."""
    words = np.zeros(count, np.bool_)
    for offset in range(RUN):
        words[offset : offset + len(shingles)] |= shingles
    return words


def short_gaps(marked: npt.NDArray[np.bool_]) -> int:
    """Returns the number of gaps of less than `RUN` words between marked words."""
    steps = np.diff(np.flatnonzero(marked))
    return int(((steps > 1) & (steps <= RUN)).sum())


def _record(
    match: Match,
    passage: Passage,
    words: npt.NDArray[np.int64],
    shingles: npt.NDArray[np.uint64],
    valid: npt.NDArray[np.bool_],
) -> None:
    """Adds what a passage shares with a gold page to the page's match."""
    key, total = title_key(passage.title), len(match.words)
    shared = np.isin(match.shingles, shingles[valid])
    here = spread(np.isin(shingles, match.shingles) & valid, len(words))
    covered = spread(shared, total) if total >= RUN else np.zeros(total, np.bool_)
    if len(words) < RUN or total < RUN:
        for at in positions_of(words, match.words):
            covered[at : at + len(words)], here[:] = True, True
        if positions_of(match.words, words):
            covered[:] = True
    if match.page.text is None and sum(map(len, match.texts)) < BATCH:
        match.texts.append(words)
    whole = bool(total and shared.all() and covered.all())
    cover = match.covers.get(key)
    if cover is None:
        cover = match.covers[key] = Cover(passage.title, np.zeros(len(shared), np.bool_), np.zeros(total, np.bool_))
    if total and not whole and 0.5 <= here.mean() < 1 and covered.mean() >= 0.5:
        cover.altered.append(passage.id)
    if cover.whole and not whole:
        return  # another passage of the title has it all
    if covered.any() or match.page.text is None:
        cover.shingles |= shared
        cover.words |= covered
        cover.ids.append(passage.id)
        cover.extra += int((~here).sum())
        cover.inserted += short_gaps(here)
    if whole:
        cover.whole.append(passage.id)
        cover.extra = int((~here).sum())
    if len(match.covers) > TITLES:
        _forget(match)


def positions_of(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> list[int]:
    """Returns the positions at which a sequence of words is within another; none if it has no words."""
    count = len(whole) - len(part) + 1
    if not len(part) or count < 1:
        return []
    equal = np.ones(count, np.bool_)
    for offset, word in enumerate(part):
        equal &= whole[offset : offset + count] == word
    return np.flatnonzero(equal).tolist()


def _forget(match: Match) -> None:
    """Drops the cover of a match that shares least, among those under titles of other pages."""
    fold = fold_title(match.page.title)
    others = [key for key, cover in match.covers.items() if fold_title(cover.title) != fold]
    if others:
        del match.covers[min(others, key=lambda key: match.covers[key].share)]
