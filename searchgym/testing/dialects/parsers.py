"""This project's parser in the form that the conformance set runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from searchgym.protocol import Protocol, get_protocol
from searchgym.records import Action, Answer, Invalid, Search


def protocol_of(dialect: str) -> Protocol | None:
    """Returns this project's grammar of a dialect; None where it has none."""
    make: Callable[..., Protocol] = get_protocol
    if dialect in ("tags", "hermes"):
        return make("tags" if dialect == "tags" else "tool_calls")
    return make("tool_calls", dialect=dialect) if "dialect" in inspect.signature(get_protocol).parameters else None


def own_parse(dialect: str, text: str) -> Mapping[str, Any]:
    """Parses a text by this project's grammar of a dialect, which must have one."""
    protocol = protocol_of(dialect)
    assert protocol is not None
    return plain(protocol.parse(text))


def plain(action: Action) -> Mapping[str, Any]:
    """Returns an action as the conformance set writes it."""
    if isinstance(action, Search):
        return {"search": list(action.queries)}
    if isinstance(action, Answer):
        return {"answer": action.text}
    return {"refused": action.reason if isinstance(action, Invalid) else f"{type(action).__name__} is not in the set"}
