"""Converts passages to and from the JSON that retrieval servers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from searchgym.corpora.passages import split_contents
from searchgym.records import Hit, Passage


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
        KeyError: The row has neither form.
    """
    id = None if row.get("id") is None else str(row["id"])
    if "contents" not in row and {"title", "text"} <= row.keys():
        return Passage(id or str(row["title"]), str(row["title"]), str(row["text"]))
    return read_contents(str(row["contents"]), id)


def scored(row: Mapping[str, Any]) -> Hit:
    """Returns the hit in a scored document, ``{"document": .., "score": ..}``."""
    return Hit(read_document(row["document"]), float(row["score"]))
