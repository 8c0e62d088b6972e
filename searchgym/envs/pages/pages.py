"""Finds the pages of a corpus by title or id, and splits them into parts with a limited number of words.

A page is a run of consecutive passages with the same title, as in corpora of 100-word passages; a passage without a
title forms a separate page. Two runs with one title are two pages, which only ids distinguish.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np

from searchgym.corpora.ids import hash_id, positions_of, sorted_hashes
from searchgym.errors import UsageError
from searchgym.records import Hit, Passage, title_key
from searchgym.retrieval.retriever import AnyRetriever, CorpusRetriever, corpus_of
from searchgym.text import count_words, cut_words, skip_words

MAX_TARGET_CHARS: Final = 1000
"""Maximum number of characters of a title or an id to look up."""
MOST_NAMED: Final = 5
"""Maximum number of pages listed if a title is ambiguous."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a corpus."""

    position: int
    """Position of the page's first passage in the corpus."""
    title: str
    text: str
    """Texts of the page's passages, joined by line breaks."""


class PageIndex:
    """Pages of a corpus on this machine, found by title or by the id of one of their passages.

    The index uses 16 bytes per passage and 24 per page; passages themselves are read from the corpus on demand.

    Args:
        corpus: Retriever whose corpus is on this machine; all titles are read once.
    """

    def __init__(self, corpus: CorpusRetriever) -> None:
        self._corpus = corpus
        starts, titles, ids = array("q"), array("Q"), array("Q")
        before = ""
        for position, passage in enumerate(corpus.passages()):
            key = title_key(passage.title)
            if not key or key != before:
                starts.append(position)
                titles.append(hash_id(key.casefold()))
            ids.append(hash_id(passage.id))
            before = key
        self._starts = np.array([*starts, len(ids)], np.int64)
        self._titles = sorted_hashes(np.frombuffer(titles, np.uint64))
        self._ids = sorted_hashes(np.frombuffer(ids, np.uint64))

    def __len__(self) -> int:
        """Returns the number of pages."""
        return len(self._starts) - 1

    def _number(self, position: int) -> int:
        """Returns the number of the page that holds the passage at a position of the corpus."""
        return int(np.searchsorted(self._starts, position, "right")) - 1

    def at(self, position: int) -> Page:
        """Returns the page that holds the passage at a position of the corpus."""
        number = self._number(position)
        first, end = int(self._starts[number]), int(self._starts[number + 1])
        passages = [self._corpus.passage(position) for position in range(first, end)]
        return Page(first, passages[0].title, "\n".join(passage.text for passage in passages))

    def id_at(self, position: int) -> str:
        """Returns the id of the passage at a position of the corpus, which opens its page."""
        return self._corpus.passage(position).id

    def find(self, target: str) -> list[int]:
        """Returns the positions of the first passages of the pages that match a title or an id.

        An exact title (compared by `title_key`) has priority over an id, and an id over a title in different case.
        """
        key = title_key(target)
        if not key or len(target) > MAX_TARGET_CHARS:
            return []
        numbers = positions_of(self._titles, hash_id(key.casefold()))
        titles = {
            position: title_key(self._corpus.passage(position).title) for position in map(int, self._starts[[*numbers]])
        }
        exact = [position for position, title in titles.items() if title == key]
        alike = [position for position, title in titles.items() if title.casefold() == key.casefold()]
        return exact or self._of_id(target.strip()) or alike

    def _of_id(self, id: str) -> list[int]:
        """Returns a list with the position of the page that contains the passage with an id; empty if none does."""
        positions = [
            position for position in positions_of(self._ids, hash_id(id)) if self._corpus.passage(position).id == id
        ]
        return [int(self._starts[self._number(position)]) for position in positions[:1]]

    def name(self, hit: Hit) -> str:
        """Returns the label that opens a hit's page: the title, and the passage's id if the title is ambiguous."""
        title, id = hit.passage.title, hit.passage.id
        page = self._of_id(id)
        return f"Title: {title}" if not page or self.find(title) == page else f"Title: {title}, id: {id}"


def pages_of(retriever: AnyRetriever) -> PageIndex:
    """Returns the pages of a retriever's corpus.

    Raises:
        UsageError: The corpus is not on this machine, or depends on the question.
    """
    corpus = corpus_of(retriever)
    if corpus is None:
        raise UsageError(
            f"browse: pages are opened from the corpus, which {type(retriever).__name__} does not have on this "
            "machine: pass corpus=PATH with a retriever that searches it here, or leave browse off"
        )
    return PageIndex(corpus)


def parts_of(text: str, words: int) -> int:
    """Returns the number of parts of at most `words` words that a text is split into, at least 1."""
    return max(1, -(-count_words(text) // words))


def part_of(text: str, number: int, words: int) -> str:
    """Returns part `number` (from 1) of a text, with the spacing between its words unchanged."""
    return cut_words(skip_words(text, (number - 1) * words), words)


def snippet(hit: Hit, words: int) -> Hit:
    """Returns a hit whose passage is cut to its first `words` words."""
    passage = hit.passage
    return Hit(Passage(passage.id, passage.title, cut_words(passage.text, words)), hit.score)
