"""Passages on the wire: the JSON that retrieval servers of this field send, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from searchgym.corpora.passages import split_contents
from searchgym.records import Hit, Passage


def contents(passage: Passage) -> str:
    """Returns the title, in quotes, and the text, each on its own line: ``contents`` of Search-R1's corpus files."""
    return f'"{passage.title}"\n{passage.text}'


def document(passage: Passage) -> dict[str, str]:
    """Returns a passage as Search-R1's corpus files have it."""
    return {"id": passage.id, "contents": contents(passage)}


def read_contents(text: str, id: str | None = None) -> Passage:
    """Reads what `contents` writes; a text of one line has no title. Without an id, the title or text is it."""
    title, body = split_contents(text)
    return Passage(id or title or body, title, body)


def read_document(row: Mapping[str, Any]) -> Passage:
    """Reads what `document` writes, or a document with title and text apart, as some servers send it.

    Raises:
        KeyError: It is neither.
    """
    id = None if row.get("id") is None else str(row["id"])
    if "contents" not in row and {"title", "text"} <= row.keys():
        return Passage(id or str(row["title"]), str(row["title"]), str(row["text"]))
    return read_contents(str(row["contents"]), id)


def scored(row: Mapping[str, Any]) -> Hit:
    """Reads a document with its score: ``{"document": .., "score": ..}``."""
    return Hit(read_document(row["document"]), float(row["score"]))
