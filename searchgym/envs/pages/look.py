"""Results of opening a page: the requested part, or the reason why no page was opened."""

from __future__ import annotations

from collections.abc import Sequence

from searchgym.envs.pages.find import MAX_TEXT_CHARS, find_in
from searchgym.envs.pages.pages import MOST_NAMED, Page, PageIndex, part_of, parts_of
from searchgym.protocol import count_markers
from searchgym.records import Find, More, Open, Opened


def look(
    action: Open | More | Find, turn: int, before: Sequence[Opened], pages: PageIndex, words: int
) -> tuple[Opened, str]:
    """Opens a page, shows the next part of the last opened page, or finds a text in it.

    Args:
        action: Action of the agent: open a page, show more of one, or find a text in one.
        turn: 1-based turn of the action.
        before: Records of earlier such actions of the episode.
        pages: Pages of the corpus.
        words: Maximum number of words of a part, not counting its heading.

    Returns:
        The record, and the text to show; if no page was opened, the text explains why.
    """
    if isinstance(action, Open):
        positions = pages.find(action.target)
        if len(positions) == 1:
            return _show(turn, action.target, pages.at(positions[0]), 1, words)
        return Opened(turn, action.target), no_page(action.target, positions, pages)
    last = next((opened for opened in reversed(before) if opened.place is not None), None)
    if last is None or last.place is None:
        text = action.text[:MAX_TEXT_CHARS] if isinstance(action, Find) else ""
        return Opened(turn, "", text=text), "No page has been opened yet: open one by its title."
    if isinstance(action, Find):
        return find_in(action.text, turn, pages.at(last.place), words)
    if last.part == last.parts:
        return Opened(turn, ""), f"That was all of the page {last.title:.200}: it has no more."
    return _show(turn, "", pages.at(last.place), last.part + 1, words)


def _show(turn: int, target: str, page: Page, part: int, words: int) -> tuple[Opened, str]:
    """Returns the record and the text of a part of a page."""
    parts = parts_of(page.text, words)
    heading = f"Page(Title: {page.title:.200}, part {part} of {parts}) "
    text = heading + part_of(page.text, part, words)
    return Opened(turn, target, page.title, page.position, part, parts, count_markers(text)), text


def no_page(target: str, positions: Sequence[int], pages: PageIndex) -> str:
    """Returns a message why a title or an id opens no page: no page matches, or several do."""
    if not positions:
        return f"No page is called {target:.200}: open a page by the title that a search shows."
    ids = ", ".join(pages.id_at(position) for position in positions[:MOST_NAMED])
    return f"{len(positions)} pages are called {target:.200}: open one by its id, such as {ids}."
