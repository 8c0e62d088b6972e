"""Names what is wrong with a gold page in a corpus, from what the corpus shares with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from searchgym.eval.audit.golds import plain_words, sentence_spans, spelled_alike
from searchgym.eval.audit.match import RUN, Cover, Match, positions_of
from searchgym.records import title_key

Kind = Literal["present", "title spelled otherwise", "retitled", "cut", "near-duplicate", "other text", "missing"]
"""State of a gold page in a corpus; everything but ``present`` is a hole."""
MEANINGS: Final[Mapping[Kind, str]] = {
    "present": "the page's text is under its title, perhaps in several passages or within a longer one",
    "title spelled otherwise": "the text is there; its title differs in case, accents, punctuation or a bracket",
    "retitled": "the text is there, under another title",
    "cut": "the title is there, with a part of the text and no other words",
    "near-duplicate": "the title is there, with a text in which words differ",
    "other text": "the title is there, with a text that shares little or nothing",
    "missing": "neither the title nor the text is there",
}
"""Meaning of each kind."""
ALIKE: Final = 0.3
"""Minimum share of a page's words in a text under its title; with less, the text is another one."""
SAME: Final = 0.15
"""Maximum distance of a text under another title from the page's; with more, it is another page that is worded alike.

Both limits were chosen on generated worlds, see studies/corpus_audit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one gold page in a corpus."""

    kind: Kind
    title: str
    """Title of the gold page."""
    needed: bool
    """Whether what the question needs of the page is in the corpus: its gold sentences, or without such the text."""
    nearest: str | None = None
    """Title in the corpus whose passages share most with the page; None if none share anything."""
    distance: float | None = None
    """Share of the words of both texts outside runs of four equal words, in [0, 1]; None if nothing was compared."""
    ids: tuple[str, ...] = ()
    """Ids of the passages with the page's text, at most `MOST_IDS`."""
    copies: int = 0
    """Number of further passages with the whole text, under any title."""
    conflicts: tuple[str, ...] = ()
    """Ids of passages under the page's title with a near-duplicate of a text that is also there as it should be."""


RESEMBLING: Final = 0.5
"""Maximum distance at which a missing page's finding names the page that resembles it."""
MOST_IDS: Final = 20
"""Maximum number of passage ids in a finding."""


def judge(match: Match) -> Finding:
    """Returns the state of a gold page."""
    page = match.page
    exact = match.covers.get(title_key(page.title))
    spelled = [c for c in match.covers.values() if c is not exact and spelled_alike(c.title, page.title)]
    others = [c for c in match.covers.values() if c is not exact and c not in spelled]
    best = max(match.covers.values(), key=lambda c: (c.share, -c.distance, c is exact), default=None)
    if page.text is None:
        return _by_title(match, exact, spelled)
    copies = sum(len(cover.whole) for cover in match.covers.values())
    if exact is not None and is_complete(exact):
        return _finding("present", match, exact, max(copies - 1, 0))
    for cover in spelled:
        if is_complete(cover):
            return _finding("title spelled otherwise", match, cover, max(copies - 1, 0))
    same = [cover for cover in others if cover.distance <= SAME]
    if same and (exact is None or exact.share < 1 - SAME):
        return _finding("retitled", match, min(same, key=lambda cover: cover.distance), max(copies - 1, 0))
    here = max((cover for cover in (exact, *spelled) if cover is not None), key=lambda c: c.share, default=None)
    if here is not None and here.words.any() and here.extra == 0:
        return _finding("cut", match, here, 0)
    if here is not None and here.share >= ALIKE:
        return _finding("near-duplicate", match, here, 0)
    return _finding("missing" if exact is None else "other text", match, best, 0)


def is_complete(cover: Cover) -> bool:
    """Checks whether passages of one title contain a page's whole text, unchanged, in one or several pieces.

    Pieces lose the shingles across their boundaries: at most three for each boundary.
    """
    if cover.whole:
        return True
    pieces, lost = len(cover.ids), int((~cover.shingles).sum())
    every_word = len(cover.words) > 0 and bool(cover.words.all())
    return every_word and pieces > 1 and not cover.inserted and lost < RUN * (pieces - 1)


def _by_title(match: Match, exact: Cover | None, spelled: Sequence[Cover]) -> Finding:
    """Returns the state of a page without text, by its title alone."""
    if exact is not None:
        return Finding("present", match.page.title, True, exact.title, None, tuple(exact.ids[:MOST_IDS]))
    if spelled:
        cover = spelled[0]
        return Finding(
            "title spelled otherwise", match.page.title, True, cover.title, None, tuple(cover.ids[:MOST_IDS])
        )
    return Finding("missing", match.page.title, False)


def _finding(kind: Kind, match: Match, cover: Cover | None, copies: int) -> Finding:
    """Returns a finding about the passages of a cover, or without passages."""
    page = match.page
    needed = any(_has_needed(match, other) for other in match.covers.values())
    if cover is None or not cover.words.any() or (kind == "missing" and cover.distance > RESEMBLING):
        return Finding(kind, page.title, needed)
    ids = tuple((cover.whole or cover.ids)[:MOST_IDS]) if kind != "missing" else ()
    conflicts = tuple(cover.altered[:MOST_IDS]) if cover.whole else ()
    distance = 0.0 if is_complete(cover) else round(cover.distance, 4)
    return Finding(kind, page.title, needed, cover.title, distance, ids, copies, conflicts)


def _has_needed(match: Match, cover: Cover) -> bool:
    """Checks whether the passages of one title contain each gold sentence of a page, unchanged."""
    if is_complete(cover):
        return True
    words = cover.words
    for first, last in sentence_spans(match.page):
        inner = cover.shingles[first : max(last - RUN + 1, first)]
        if not words[first:last].all() or ((len(cover.ids) == 1 or cover.inserted) and not inner.all()):
            return False
    return True


def holds_answer(match: Match, answers: Sequence[npt.NDArray[np.int64]]) -> tuple[bool, bool]:
    """Checks whether an accepted answer is in a gold page's text, and whether it is in what the corpus has of that.

    Args:
        match: What the corpus has of the page.
        answers: (n,) numbers of the words of each accepted answer.

    Returns:
        Whether the text has an answer, and whether the corpus has it. Of a page without text, the passages with its
        title are searched for both.
    """
    in_gold = in_corpus = False
    for answer in answers:
        if match.page.text is None:
            in_corpus |= any(True for text in match.texts for _ in positions_of(answer, text))
            in_gold = in_corpus
            continue
        for at in positions_of(answer, match.words):
            in_gold = True
            in_corpus |= any(cover.words[at : at + len(answer)].all() for cover in match.covers.values())
    return in_gold, in_corpus


def named_in_title(match: Match, answers: Sequence[Sequence[str]]) -> bool:
    """Checks whether the title of a gold page has the words of an accepted answer in a row."""
    title = f" {' '.join(plain_words(match.page.title))} "
    return any(f" {' '.join(answer)} " in title for answer in answers if answer)
