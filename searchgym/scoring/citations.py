"""Precision and recall of an episode's citations, against the gold evidence of its question.

Gold evidence is a list of passages, each a page's title and the sentence that states the fact
(``Question.metadata["gold_spans"]``), or else the question's gold pages, each as a whole. A valid citation supports a
gold sentence if it quotes the sentence, or at least half of its words, consecutively and nothing outside it; it
supports a gold page by any quote. Validity (the page was opened, the quote is in it) is checked when the citation is
written, see `searchgym.envs.pages.cite`. The definition is ours; ALCE (Gao et al. 2023, arXiv 2305.14627) has the same
two measures with a model as the judge of support.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from searchgym.errors import DataError
from searchgym.records import Cited, Question, title_key
from searchgym.text import norm

GOLD_SPANS: Final = "gold_spans"
"""Metadata key of a question's gold passages, a list of mappings ``{"title": ..., "text": ...}``."""
LEAST: Final = 0.5
"""Minimum share of the words of a gold sentence that a part of it must have to support it."""


class GoldSpan(NamedTuple):
    """One gold passage."""

    title: str
    """Title of its page."""
    text: str
    """Sentence of the page; empty if the whole page is gold."""

    def supported_by(self, cited: Cited) -> bool:
        """Returns whether a citation supports the gold passage."""
        if cited.fault or title_key(cited.title) != title_key(self.title):
            return False
        quote, gold = norm(cited.quote), norm(self.text)
        if not gold or f" {gold} " in f" {quote} ":
            return True
        return f" {quote} " in f" {gold} " and len(quote.split()) >= LEAST * len(gold.split())


def gold_spans_of(question: Question) -> list[GoldSpan]:
    """Returns the gold passages of a question; none if it names neither passages nor gold pages.

    Raises:
        DataError: The metadata value is not a list of mappings with a title and a text.
    """
    rows: Any = question.metadata.get(GOLD_SPANS)
    if rows is None:
        return [GoldSpan(title, "") for title in question.gold_titles or ()]
    spans = []
    for row in rows if isinstance(rows, (list, tuple)) else [rows]:
        title, text = (row.get("title"), row.get("text")) if isinstance(row, dict) else (None, None)
        if not isinstance(title, str) or not isinstance(text, str):
            reason = f"expected [{{title: ..., text: ...}}, ...], got {rows!r:.80}"
            raise DataError(f"question {question.id!r}: {GOLD_SPANS}: {reason}")
        spans.append(GoldSpan(title, text))
    return spans


class CitationScores(NamedTuple):
    """Precision and recall of citations."""

    precision: float
    """Share of the different citations that support a gold passage, those that are not valid included; 0 without
    citations."""
    recall: float
    """Share of the gold passages that a citation supports."""


def score_citations(cites: Sequence[Cited], golds: Sequence[GoldSpan]) -> CitationScores:
    """Scores the citations of an episode; a repeated citation counts once.

    Args:
        cites: Citations, and failed attempts at one.
        golds: Gold passages of the question, at least one.
    """
    different = list({(title_key(cited.title or cited.target), norm(cited.quote)): cited for cited in cites}.values())
    supporting = sum(any(gold.supported_by(cited) for gold in golds) for cited in different)
    supported = sum(any(gold.supported_by(cited) for cited in different) for gold in golds)
    return CitationScores(supporting / len(different) if different else 0.0, supported / len(golds))
