"""Subjects of pages: their kind, the word for it in questions, and their sex."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import regex

from searchgym.questions.graphs.packs import Pack
from searchgym.questions.graphs.patterns import SECONDS
from searchgym.records import Passage
from searchgym.text import head_noun

SLOW: Final = f"a pattern took more than {SECONDS} s"
"""Reason recorded when a pattern exceeds its time limit and its facts are left out."""
_SIGNS: Final = 220
"""Number of leading characters of a passage that are searched for the signs of a kind."""


def kinds_of(passages: Sequence[Passage], pack: Pack, refused: Counter[str]) -> Iterator[str | None]:
    """Yields the kind of each page's subject, recognised by its noun, else by signs; None if neither matches."""
    nouns = {noun: name for name, kind in pack.kinds.items() for noun in kind.nouns}
    signs = [
        (name, pack.compiled(sign, f"kinds.{name}.signs")) for name, kind in pack.kinds.items() for sign in kind.signs
    ]
    for passage in passages:
        noun = head_noun(passage.text)
        kind = nouns.get(noun) or nouns.get(noun.rpartition("-")[2])
        if kind is None:
            start = passage.text[:_SIGNS]
            try:
                kind = next((name for name, sign in signs if sign.search(start, timeout=SECONDS)), None)
            except TimeoutError:
                refused[f"kind: {SLOW}"] += 1
        yield kind


def called_of(text: str, pack: Pack, kind: str | None) -> str | None:
    """Returns the word before a page's name in questions."""
    if kind is None:
        return None
    words = pack.kinds[kind].called
    if not words:
        return ""
    predicate = re.search(r"\b(?:is|was)\s+(?:an?|the)\s+(.{0,140})", text[:400])
    return next(
        (word for key, word in words.items() if predicate and re.search(rf"\b{re.escape(key)}\b", predicate[1])), None
    )


def pronouns(text: str) -> tuple[int, int]:
    """Returns the counts of masculine (he, his, him) and feminine (she, her, hers) pronouns in a text."""
    counts = Counter(re.findall(r"\w+", text.lower()))
    return sum(counts[w] for w in ("he", "his", "him")), sum(counts[w] for w in ("she", "her", "hers"))


class Sexes:
    """Determines the sex of people from titles and pronouns.

    Args:
        passages: The corpus.
        pack: Pack with the titles.
    """

    def __init__(self, passages: Sequence[Passage], pack: Pack) -> None:
        self._passages = passages
        self._words = {
            sex: regex.compile(rf"\b(?:{'|'.join(map(regex.escape, words))})\b") if words else None
            for sex, words in (("she", pack.she), ("he", pack.he))
        }

    def of_names(
        self, text: str, start: int, names: list[tuple[int, int, int | None]], sex: str
    ) -> list[tuple[int, int, int | None]]:
        """Returns those of one or two names that have the given sex; of two, the other's sex can decide."""
        if len(names) > 2:
            return []
        position, sexes = start, []
        for begin, end, target in names:
            sexes.append(self._of(text[max(position, begin - 25) : end], target))
            position = end
        if len(names) == 2 and sexes.count(None) == 1:
            other = {"he": "she", "she": "he"}[next(t for t in sexes if t is not None)]
            sexes = [t or other for t in sexes]
        return [name for name, t in zip(names, sexes, strict=True) if t == sex]

    def _of(self, mention: str, target: int | None) -> str | None:
        """Returns a person's sex from the title or, if there is a page, from its pronouns; None if undecided."""
        she, he = (bool(p and p.search(mention)) for p in (self._words["she"], self._words["he"]))
        if she != he:
            return "she" if she else "he"
        if target is None:
            return None
        page = self._passages[target]
        men, women = pronouns(page.text)
        for sex, pattern in self._words.items():
            hits = len(pattern.findall(page.title + "\n" + page.text[:200])) if pattern else 0
            men, women = men + hits * (sex == "he"), women + hits * (sex == "she")
        return "he" if men > women + 1 else "she" if women > men + 1 else None
