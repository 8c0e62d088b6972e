"""Adapter of this project's parser to the conformance set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from searchgym.protocol import Protocol, get_protocol
from searchgym.records import Action, Answer, Invalid, Search


def protocol_of(dialect: str) -> Protocol:
    """Returns SearchGym's action grammar for ``tags`` or for a dialect of tool calls."""
    return get_protocol("tags") if dialect == "tags" else get_protocol("tool_calls", dialect=dialect)


def searchgym_parse(dialect: str, text: str) -> Mapping[str, Any]:
    """Parses a text with SearchGym's action grammar for a dialect; see `protocol_of`."""
    return plain(protocol_of(dialect).parse(text))


def plain(action: Action) -> Mapping[str, Any]:
    """Converts an action to the form of the conformance set; see `runner.Parse`."""
    if isinstance(action, Search):
        return {"search": list(action.queries)}
    if isinstance(action, Answer):
        return {"answer": action.text}
    return {"refused": action.reason if isinstance(action, Invalid) else f"{type(action).__name__} is not in the set"}
