"""Tool calls: finding them in a text, reading them as actions, and writing them, in any dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from searchgym.protocol.dialect import Dialect, list_dialects, load_dialect, opening_pattern
from searchgym.protocol.notations import NOTATIONS, decoded, read_json, value_of
from searchgym.records import Action, Cite, Find, Invalid, More, Open, Search

_BEGIN: Final = re.compile(r"\s*+(?:```\w*+\s*+)?+")
"""Matches the text that may precede a call without an opening marker, which must begin the response."""


@dataclass(frozen=True, slots=True)
class ScannedCall:
    """One potential tool call in a text."""

    start: int
    end: int
    """Position after the part that was read."""
    state: Literal["whole", "faulty", "unfinished", "loose"]
    """``whole``: its first object can be read; ``faulty``: it cannot; ``unfinished``: the text ends within the object;
    ``loose``: nothing after the marker looks like a call, for example in prose that mentions the marker."""
    calls: tuple[Any, ...] = ()
    """See `Body.calls`."""
    fault: str = ""
    """Reason why the call, or the text after its calls, cannot be read."""


def scan(text: str, dialect: Dialect, most: int | None = 1) -> Iterator[ScannedCall]:
    """Yields the potential tool calls of a text, in order.

    Args:
        text: A model's text without thoughts.
        dialect: Dialect of the calls.
        most: Maximum number of objects read after one marker; None for all.
    """
    pattern, last, at = opening_pattern(dialect), text.rfind(dialect.closing) if dialect.closing else -1, 0
    begin = _BEGIN.match(text)
    bare = begin.end() if begin else 0
    while match := pattern.search(text, at):
        if match["marker"] is None and match.start() > bare:  # quoted in prose
            scanned = ScannedCall(match.start(), match.end(), "loose")
        else:
            scanned = _read(text, match, dialect, most, last)
        yield scanned
        at = max(scanned.end, match.end())


def _read(text: str, match: re.Match[str], dialect: Dialect, most: int | None, last: int) -> ScannedCall:
    """Reads the call after an opening marker, or a JSON call without one.

    Args:
        text: The text.
        match: The opening marker, or the beginning of the JSON.
        dialect: Dialect of the calls.
        most: See `scan`.
        last: Position of the text's last closing marker; negative if there is none.
    """
    start, marker = match.start(), match["marker"]
    at = start if marker in (None, "<function=") else match.end()
    body = read_json(text, at, dialect, 1) if marker is None else NOTATIONS[dialect.notation](text, at, dialect, most)
    if marker is None and body.calls:
        call = _unwrapped(body.calls[0])
        if not isinstance(call, dict) or "name" not in call or not {"arguments", "parameters"} & call.keys():
            return ScannedCall(start, body.end, "loose")  # JSON that names no tool
    if body.unfinished:
        return ScannedCall(start, len(text), "unfinished", fault=body.fault)
    if body.end > at:
        return ScannedCall(start, body.end, "whole" if body.calls else "faulty", tuple(body.calls), body.fault)
    if last < at:
        return ScannedCall(start, at, "loose", fault=body.fault)
    return ScannedCall(start, text.index(dialect.closing, at) + len(dialect.closing), "faulty", fault=body.fault)


def _unwrapped(call: Any) -> Any:
    """Returns the inner mapping of ``{"type": "function", "function": {...}}``."""
    inner = call.get("function") if isinstance(call, dict) else None
    return inner if isinstance(inner, dict) else call


def name_and_arguments(call: Any) -> tuple[Any, dict[str, Any] | None]:
    """Returns the tool and the arguments of a call; the arguments may be an object or a string of JSON.

    Returns:
        (name, arguments): as the model wrote them; arguments are None if they are not a mapping.
    """
    call = _unwrapped(call)
    if not isinstance(call, dict):
        return None, None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = decoded(arguments)
        except ValueError:
            arguments = None
    return call.get("name"), arguments if isinstance(arguments, dict) else None


def read_call(call: Any, key: str, page_tools: Sequence[str], sources: Sequence[str]) -> Action:
    """Converts a tool call, such as ``{"name": "search", "arguments": {"query": str or [str, ...]}}``, to an action.

    Args:
        call: The parsed call; see `Body.calls`.
        key: Key of the arguments, quoted if the call is malformed.
        page_tools: Names of the tools other than ``search``; see `Protocol.page_tools`.
        sources: Names of additional retrievers, selected by the argument ``source``.
    """
    name, arguments = name_and_arguments(call)
    if arguments is None:
        return Invalid(f'the tool call is not {{"name": ..., "{key}": {{...}}}}')
    if name in page_tools:
        return _read_page_call(name, arguments)
    if name != "search":
        tools = ("search", *page_tools)
        return Invalid(
            f"the tools are {', '.join(tools[:-1])} and {tools[-1]}" if page_tools else "the only tool is search"
        )
    query = arguments.get("query")
    queries = [query] if isinstance(query, str) else query
    if not isinstance(queries, list) or not queries or not all(isinstance(q, str) and q.strip() for q in queries):
        return Invalid("query is not a non-empty string or a list of them")
    source = arguments.get("source", "") if sources else ""
    if source not in ("", *sources):
        return Invalid(f"the sources are {', '.join(sources)}; leave source out for the first")
    return Search(tuple(q.strip() for q in queries), source)


def _read_page_call(name: str, arguments: dict[str, Any]) -> Action:
    """Converts a call of a tool that works on pages to an action."""
    page, text, quote = (
        value.strip() if isinstance(value, str) else "" for value in map(arguments.get, ("page", "text", "quote"))
    )
    if name == "more":
        return More()
    if name == "find":
        return Find(text) if text else Invalid("text is not a non-empty string")
    if not page:
        return Invalid("page is no title or id")
    if name == "open":
        return Open(page)
    return Cite(page, quote) if quote else Invalid("quote is not a non-empty string")


def spelled_in(text: str, dialect_in_use: Dialect | None) -> str:
    """Returns the dialect of the first tool call that is written in another dialect; empty if there is none."""
    spelled: list[tuple[int, bool, str]] = []
    for dialect in map(load_dialect, list_dialects()):
        if dialect_in_use is None or dialect.name != dialect_in_use.name:
            scanned = next((scanned for scanned in scan(text, dialect) if scanned.state == "whole"), None)
            if scanned is not None and name_and_arguments(scanned.calls[0])[1] is not None:
                spelled.append((scanned.start, dialect.notation != "json", dialect.name))
    return min(spelled)[2] if spelled else ""


def write_call(dialect: Dialect, name: str, arguments: dict[str, Any]) -> str:
    """Returns the text of a call in a dialect."""
    if dialect.notation == "json":
        return dialect.show(name, json.dumps(arguments, ensure_ascii=False))
    if dialect.notation == "python":
        keywords = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
        return dialect.show(name, keywords)
    texts = {}
    for key, value in arguments.items():
        listed = isinstance(value, str) and isinstance(value_of(value), list)  # a text that would be read as a list
        texts[key] = json.dumps([value] if listed else value, ensure_ascii=False)
        if isinstance(value, str) and not listed:
            texts[key] = value
    return dialect.show(name, "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items()))
