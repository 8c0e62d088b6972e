"""Tool calls in a text: where each begins, what it says, and in which dialect; and how one is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from searchgym.protocol.dialect import Dialect, list_dialects, load_dialect, opening_pattern
from searchgym.protocol.notations import NOTATIONS, decoded, read_json, value_of
from searchgym.records import Action, Invalid, More, Open, Search

_BEGIN: Final = re.compile(r"\s*+(?:```\w*+\s*+)?+")
"""Matches what may stand before a call without a marker, which begins the text."""


@dataclass(frozen=True, slots=True)
class Found:
    """One place in a text where a call is opened."""

    start: int
    end: int
    """Position after what was read there."""
    state: Literal["whole", "faulty", "unfinished", "loose"]
    """``whole``: its first object can be read; ``faulty``: it cannot; ``unfinished``: the text ends within the object;
    ``loose``: nothing after the marker looks like a call, such as in prose that names the marker."""
    calls: tuple[Any, ...] = ()
    """See `Body.calls`."""
    fault: str = ""
    """Why it, or what follows its calls, cannot be read."""


def scan(text: str, dialect: Dialect, most: int | None = 1) -> Iterator[Found]:
    """Yields what is opened in a text, in order.

    Args:
        text: Text of a model, without its thoughts.
        dialect: How calls are spelled.
        most: Number of objects that are read of one place that has several; None for all.
    """
    pattern, last, at = opening_pattern(dialect), text.rfind(dialect.closing) if dialect.closing else -1, 0
    begin = _BEGIN.match(text)
    bare = begin.end() if begin else 0
    while match := pattern.search(text, at):
        if match["marker"] is None and match.start() > bare:  # quoted in prose
            found = Found(match.start(), match.end(), "loose")
        else:
            found = _read(text, match, dialect, most, last)
        yield found
        at = max(found.end, match.end())


def _read(text: str, match: re.Match[str], dialect: Dialect, most: int | None, last: int) -> Found:
    """Reads what a marker opens, or JSON without a marker.

    Args:
        text: The text.
        match: The opening marker, or the beginning of the JSON.
        dialect: How calls are spelled.
        most: See `scan`.
        last: Position of the text's last closing marker; negative if there is none.
    """
    start, marker = match.start(), match["marker"]
    at = start if marker in (None, "<function=") else match.end()
    body = read_json(text, at, dialect, 1) if marker is None else NOTATIONS[dialect.notation](text, at, dialect, most)
    if marker is None and body.calls:
        call = _unwrapped(body.calls[0])
        if not isinstance(call, dict) or "name" not in call or not {"arguments", "parameters"} & call.keys():
            return Found(start, body.end, "loose")  # JSON that names no tool
    if body.unfinished:
        return Found(start, len(text), "unfinished", fault=body.fault)
    if body.end > at:
        return Found(start, body.end, "whole" if body.calls else "faulty", tuple(body.calls), body.fault)
    if last < at:
        return Found(start, at, "loose", fault=body.fault)
    return Found(start, text.index(dialect.closing, at) + len(dialect.closing), "faulty", fault=body.fault)


def _unwrapped(call: Any) -> Any:
    """Returns the inner mapping of ``{"type": "function", "function": {...}}``."""
    inner = call.get("function") if isinstance(call, dict) else None
    return inner if isinstance(inner, dict) else call


def name_and_arguments(call: Any) -> tuple[Any, dict[str, Any] | None]:
    """Returns the tool and the arguments of a call, which may stand as JSON or as a text of JSON.

    Returns:
        (name, arguments): as the model wrote them; no arguments if they are no mapping.
    """
    call = _unwrapped(call)
    if not isinstance(call, dict):
        return None, None
    given = call.get("arguments", call.get("parameters"))
    if isinstance(given, str):
        try:
            given = decoded(given)
        except ValueError:
            given = None
    return call.get("name"), given if isinstance(given, dict) else None


def read_call(call: Any, key: str, browse: bool, sources: Sequence[str]) -> Action:
    """Reads a tool call ``{"name": "search", "arguments": {"query": str or [str, ...]}}``, or of open or more.

    Args:
        call: The call as it was written; see `Body.calls`.
        key: Key of the arguments, for the reason why it is none.
        browse: Whether there are the tools open and more.
        sources: Names of further retrievers; the argument ``source`` names one of them.
    """
    name, arguments = name_and_arguments(call)
    if arguments is None:
        return Invalid(f'the tool call is not {{"name": ..., "{key}": {{...}}}}')
    if browse and name == "more":
        return More()
    if browse and name == "open":
        page = arguments.get("page")
        return Open(page.strip()) if isinstance(page, str) and page.strip() else Invalid("page is no title or id")
    if name != "search":
        return Invalid("the tools are search, open and more" if browse else "the only tool is search")
    query = arguments.get("query")
    queries = [query] if isinstance(query, str) else query
    if not isinstance(queries, list) or not queries or not all(isinstance(q, str) and q.strip() for q in queries):
        return Invalid("query is not a non-empty string or a list of them")
    source = arguments.get("source", "") if sources else ""
    if source not in ("", *sources):
        return Invalid(f"the sources are {', '.join(sources)}; leave source out for the first")
    return Search(tuple(q.strip() for q in queries), source)


def spelled_in(text: str, own: Dialect | None) -> str:
    """Returns the name of another dialect in which a text holds a call, the first of several; empty without any."""
    spelled: list[tuple[int, bool, str]] = []
    for dialect in map(load_dialect, list_dialects()):
        if own is None or dialect.name != own.name:
            found = next((found for found in scan(text, dialect) if found.state == "whole"), None)
            if found is not None and name_and_arguments(found.calls[0])[1] is not None:
                spelled.append((found.start, dialect.notation != "json", dialect.name))
    return min(spelled)[2] if spelled else ""


def write_call(dialect: Dialect, name: str, arguments: dict[str, Any]) -> str:
    """Returns the text of a call in a dialect."""
    if dialect.notation == "json":
        return dialect.show(name, json.dumps(arguments, ensure_ascii=False))
    if dialect.notation == "python":
        given = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
        return dialect.show(name, given)
    texts = {}
    for key, value in arguments.items():
        listed = isinstance(value, str) and isinstance(value_of(value), list)  # a text that reads as a list
        texts[key] = json.dumps([value] if listed else value, ensure_ascii=False)
        if isinstance(value, str) and not listed:
            texts[key] = value
    return dialect.show(name, "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items()))
