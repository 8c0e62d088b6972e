"""Citing a page: the checks that a citation must pass when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from searchgym.envs.pages.find import occurrences
from searchgym.envs.pages.look import no_page
from searchgym.envs.pages.pages import PageIndex
from searchgym.records import Cite, Cited, Opened
from searchgym.text import count_words

QUOTE_WORDS: Final = (3, 60)
"""Minimum and maximum number of words of a quote: a shorter one is on any page, a longer one copies the page."""


def cite(action: Cite, turn: int, opens: Sequence[Opened], pages: PageIndex) -> tuple[Cited, str]:
    """Checks a citation.

    It is valid if the page was opened in this episode and holds the quote word for word, ignoring case and the width of
    white space.

    Args:
        action: Action of the agent.
        turn: 1-based turn of the action.
        opens: Records of the pages opened so far in this episode.
        pages: Pages of the corpus.

    Returns:
        The record, and the text to show; if the citation is not valid, the text says why.
    """
    target, quote = action.target[:200], action.quote[:1000]
    fault, title = _fault(action, opens, pages)
    if fault:
        return Cited(turn, target, quote, fault=fault), f"That citation does not count: {fault}"
    return Cited(turn, target, quote, title), f"Cited: {title:.200}"


def _fault(action: Cite, opens: Sequence[Opened], pages: PageIndex) -> tuple[str, str]:
    """Returns the reason why a citation is not valid, empty if it is, and the page's title."""
    low, high = QUOTE_WORDS
    if not low <= count_words(action.quote) <= high:
        return f"a quote has {low} to {high} words.", ""
    positions = pages.find(action.target)
    if len(positions) != 1:
        return no_page(action.target, positions, pages), ""
    if all(opened.place != positions[0] for opened in opens):
        return "the page has not been opened.", ""
    page = pages.at(positions[0])
    if not occurrences(action.quote, page.text):
        return "the page does not hold that quote word for word.", ""
    return "", page.title
