"""Converts passages to and from the JSON that retrieval servers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from searchgym.corpora.passages import split_contents
from searchgym.records import Hit, Passage

TOKEN: Final = "SEARCHGYM_TOKEN"
"""Environment variable with the token of a retrieval server, on the server and on its clients."""


def contents(passage: Passage) -> str:
    """Returns a passage as one text, as in Search-R1's corpus files: the title in quotes, a line break and the text."""
    return f'"{passage.title}"\n{passage.text}'


def document(passage: Passage) -> dict[str, str]:
    """Returns a passage as a row of Search-R1's corpus files, ``{"id", "contents"}``."""
    return {"id": passage.id, "contents": contents(passage)}


def read_contents(text: str, id: str | None = None) -> Passage:
    """Returns the passage in a text that `contents` wrote; a text of one line has no title.

    Args:
        text: Title in quotes, a line break and the text.
        id: Id of the passage. Default: the title, else the text.
    """
    title, body = split_contents(text)
    return Passage(id or title or body, title, body)


def read_document(row: Mapping[str, Any]) -> Passage:
    """Returns the passage in a row that `document` wrote, or in ``{"title", "text"}``, which some servers send.

    Raises:
        LookupError, TypeError, AttributeError: The row has neither form.
    """
    id = row.get("id")
    if not isinstance(id, (str, int, type(None))):
        raise TypeError(f"an id is a text or a number, got {type(id).__name__}")
    id = None if id is None else str(id)
    if "contents" not in row and {"title", "text"} <= row.keys():
        return Passage(id or row["title"], row["title"], row["text"])
    return read_contents(row["contents"], id)


def read_hit(row: Any, rank: int) -> Hit:
    """Returns a server's hit: ``{"document": .., "score": ..}``, or a document or text alone, which scores 1 / rank.

    The types of texts and scores are left to `searchgym.retrieval.retriever.checked`.

    Args:
        row: The hit as received.
        rank: Its rank, from 1.

    Raises:
        LookupError, TypeError, AttributeError: The row has none of these forms.
    """
    if isinstance(row, str):
        return Hit(read_contents(row), 1.0 / rank)
    if not isinstance(row, dict):
        raise TypeError(f"a hit is an object, got {type(row).__name__}")
    if "document" not in row:
        return Hit(read_document(row), 1.0 / rank)
    if not isinstance(row["document"], dict):
        raise TypeError(f"a document is an object, got {type(row['document']).__name__}")
    return Hit(read_document(row["document"]), row["score"])
